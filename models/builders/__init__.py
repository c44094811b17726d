"""Models with random weights, written the way exporters write them: `build(name, size=..., **sizes)`."""

from models.builders.registry import BUILDERS, Builder, build, builder, names, path

__all__ = ["BUILDERS", "Builder", "build", "builder", "names", "path"]
