"""What leaves a render: the video file."""

from .video_file import VideoFile, VideoFileError, playable_frames, to_pixels

__all__ = ["VideoFile", "VideoFileError", "playable_frames", "to_pixels"]
