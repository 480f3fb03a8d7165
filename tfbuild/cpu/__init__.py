"""A text that describes a CPU -> features -> instruction set -> compiler flags."""

from tfbuild.cpu.detection import CPUINFO, RULES, Cpu, detect, parse, read_text
from tfbuild.cpu.recordings import ARCHITECTURES

__all__ = ["ARCHITECTURES", "CPUINFO", "RULES", "Cpu", "detect", "parse", "read_text"]
