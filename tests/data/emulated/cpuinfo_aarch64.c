/* Prints the lines of /proc/cpuinfo that tfbuild reads, from the words that the kernel gives each program: under QEMU's
 * user emulation the file itself is the host's. Names and bits: Linux, arch/arm64/include/uapi/asm/hwcap.h. */
#include <stdio.h>
#include <sys/auxv.h>

static const char *const FIRST[] = {
    "fp", "asimd", "evtstrm", "aes", "pmull", "sha1", "sha2", "crc32", "atomics", "fphp", "asimdhp", "cpuid",
    "asimdrdm", "jscvt", "fcma", "lrcpc", "dcpop", "sha3", "sm3", "sm4", "asimddp", "sha512", "sve", "asimdfhm", "dit",
    "uscat", "ilrcpc", "flagm", "ssbs", "sb", "paca", "pacg",
};
static const char *const SECOND[] = {
    "dcpodp", "sve2", "sveaes", "svepmull", "svebitperm", "svesha3", "svesm4", "flagm2", "frint", "svei8mm", "svef32mm",
    "svef64mm", "svebf16", "i8mm", "bf16", "dgh", "rng", "bti",
};

static void print(unsigned long word, const char *const *names, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (word >> i & 1) printf(" %s", names[i]);
}

int main(void) {
    printf("processor\t: 0\nFeatures\t:");
    print(getauxval(AT_HWCAP), FIRST, sizeof FIRST / sizeof *FIRST);
    print(getauxval(AT_HWCAP2), SECOND, sizeof SECOND / sizeof *SECOND);
    puts("\nCPU architecture: 8");
    return 0;
}
