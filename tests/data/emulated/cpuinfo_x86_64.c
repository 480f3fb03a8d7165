/* Prints the line of /proc/cpuinfo that tfbuild reads, from what CPUID says: under QEMU's user emulation the file
 * itself is the host's. Names and bits: Linux, arch/x86/include/asm/cpufeatures.h; those that any CPU up to AVX2 has. */
#include <cpuid.h>
#include <stdio.h>

enum { EBX, ECX, EDX };
static const struct { unsigned leaf; int word, bit; const char *name; } FEATURES[] = {
    {1, ECX, 0, "pni"},     {1, ECX, 1, "pclmulqdq"}, {1, ECX, 9, "ssse3"},   {1, ECX, 12, "fma"},
    {1, ECX, 13, "cx16"},   {1, ECX, 19, "sse4_1"},   {1, ECX, 20, "sse4_2"}, {1, ECX, 22, "movbe"},
    {1, ECX, 23, "popcnt"}, {1, ECX, 25, "aes"},      {1, ECX, 26, "xsave"},  {1, ECX, 28, "avx"},
    {1, ECX, 29, "f16c"},   {1, ECX, 30, "rdrand"},   {7, EBX, 3, "bmi1"},    {7, EBX, 5, "avx2"},
    {7, EBX, 8, "bmi2"},    {7, EBX, 18, "rdseed"},   {7, EBX, 19, "adx"},    {0x80000001, ECX, 0, "lahf_lm"},
    {0x80000001, ECX, 5, "abm"}, {0x80000001, EDX, 29, "lm"},
};

int main(void) {
    printf("processor\t: 0\nflags\t\t:");
    for (unsigned i = 0; i < sizeof FEATURES / sizeof *FEATURES; i++) {
        unsigned eax, words[3] = {0};
        if (__get_cpuid_count(FEATURES[i].leaf, 0, &eax, &words[EBX], &words[ECX], &words[EDX]) &&
            words[FEATURES[i].word] >> FEATURES[i].bit & 1)
            printf(" %s", FEATURES[i].name);
    }
    puts("");
    return 0;
}
