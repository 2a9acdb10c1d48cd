// Finds out which node of which workflow a preview belongs to. Node ids are texts here: hosts use numbers or strings.

/** The ids under which a node runs: its own in the top graph, "12:7" for node 7 of the subgraph that node 12 shows. */
export function executionIds(node, top) {
  const home = node.graph;
  if (!home || home === top) return [String(node.id)];
  const ids = [];
  const walk = (graph, prefix) => {
    for (const other of graph.nodes ?? graph._nodes ?? []) {
      if (!other.subgraph) continue;
      const path = `${prefix}${other.id}:`;
      if (other.subgraph === home) ids.push(`${path}${node.id}`);
      walk(other.subgraph, path);
    }
  };
  walk(top, "");
  return ids;
}

/**
 * The name of the workflow tab that is open now, the same after a reload. `renamed(from, to)` is called when the tab
 * has got another name since it was last asked for, as by "save as".
 */
export function workflowNames(app, renamed) {
  const known = new WeakMap();
  return () => {
    const workflow = app.extensionManager?.workflow?.activeWorkflow;
    const name = workflow?.path ?? "";
    if (!workflow) return name;
    const before = known.get(workflow);
    if (before !== undefined && before !== name) renamed(before, name);
    known.set(workflow, name);
    return name;
  };
}

/** Tell `queued(prompt id, workflow tab)` about every prompt this page queues. */
export function watchQueue(api, workflowName, queued) {
  const original = api.queuePrompt;
  api.queuePrompt = async function (...rest) {
    const name = workflowName();
    const answer = await original.apply(this, rest);
    if (answer?.prompt_id) queued(answer.prompt_id, name);
    return answer;
  };
}

/**
 * Keep the host's own still of a chunk off nodes whose player shows the chunk anyway; it would stand below the player
 * and make the node jump. Stills of all other nodes pass, and so does one of ours when its preview has failed.
 */
export function holdBackStills(api, isPlaying) {
  api.addEventListener("b_preview_with_metadata", (event) => {
    const { nodeId, promptId, jobId } = event.detail ?? {};
    if (isPlaying(String(nodeId), promptId ?? jobId)) event.stopImmediatePropagation();
  });
}
