"""A text that describes a CPU -> features -> instruction set -> compiler flags."""

from tfbuild.cpu.detection import ARCHITECTURES, CPUINFO, MOST_TEXT, RULES, Cpu, canonical, detect, parse, read_text

__all__ = ["ARCHITECTURES", "CPUINFO", "MOST_TEXT", "RULES", "Cpu", "canonical", "detect", "parse", "read_text"]
