"""A text that describes a CPU -> features -> instruction set -> compiler flags."""

from tfbuild.cpu.detection import CPUINFO, Cpu, detect, parse, read_text
from tfbuild.cpu.recordings import ARCHITECTURES

__all__ = ["ARCHITECTURES", "CPUINFO", "Cpu", "detect", "parse", "read_text"]
