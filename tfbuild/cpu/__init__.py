"""A text that describes a CPU -> features -> instruction set -> compiler flags."""

from tfbuild.cpu.detection import CPUINFO, MOST_TEXT, RULES, Cpu, detect, parse, read_text
from tfbuild.cpu.recordings import ARCHITECTURES

__all__ = ["ARCHITECTURES", "CPUINFO", "MOST_TEXT", "RULES", "Cpu", "detect", "parse", "read_text"]
