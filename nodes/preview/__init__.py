"""What leaves a render: the video file, and the live preview that a browser plays while it renders."""

from .finish import finish_video, metadata_of, read_report
from .formats import FORMATS, VideoFormat
from .image_files import ImageFiles
from .live import SESSIONS, Preview, Unwatched, open_preview
from .routes import PreviewRoutes
from .video_file import VideoFile, VideoFileError, playable_frames, to_pixels

__all__ = [
    "FORMATS",
    "SESSIONS",
    "ImageFiles",
    "Preview",
    "PreviewRoutes",
    "Unwatched",
    "VideoFile",
    "VideoFileError",
    "VideoFormat",
    "finish_video",
    "metadata_of",
    "open_preview",
    "playable_frames",
    "read_report",
    "to_pixels",
]
