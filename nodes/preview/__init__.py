"""What leaves a render: the video file."""

from .video_file import VideoFile, VideoFileError, to_pixels

__all__ = ["VideoFile", "VideoFileError", "to_pixels"]
