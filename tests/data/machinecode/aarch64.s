add x0, x1, x2
fmla v0.4s, v1.4s, v2.4s
fadd v0.2d, v1.2d, v2.2d
mul v0.8h, v1.8h, v2.8h
ldxr x0, [x1]
stlxr w0, x1, [x2]
fcvt s0, h1
fcvtn v0.4h, v1.4s
ldr q0, [x1]
ldar x0, [x1]
ldaxp x0, x1, [x2]
sqdmulh v0.4s, v1.4s, v2.4s
uabd v0.16b, v1.16b, v2.16b
udiv x0, x1, x2
rbit x0, x1
fmov d0, #1.0
ldadd x0, x1, [x2]
ldaddal w0, w1, [x2]
stadd x0, [x1]
swpal x0, x1, [x2]
swpb w0, w1, [x2]
ldclr x0, x1, [x2]
ldumaxh w0, w1, [x2]
cas x0, x1, [x2]
casalb w0, w1, [x2]
casal w0, w1, [x2]
caspal x0, x1, x2, x3, [x4]
casp w0, w1, w2, w3, [x4]
ldapr x0, [x1]
ldaprb w0, [x1]
crc32b w0, w1, w2
crc32cx w0, w1, x2
sqrdmlah v0.4s, v1.4s, v2.4s
sqrdmlsh v0.8h, v1.8h, v2.8h
sqrdmlah v0.4s, v1.4s, v2.s[1]
sqrdmlsh s0, s1, s2
sqrdmlah h0, h1, v2.h[3]
sdot v0.4s, v1.16b, v2.16b
udot v0.2s, v1.8b, v2.8b
sdot v0.4s, v1.16b, v2.4b[1]
udot v0.2s, v1.8b, v2.4b[3]
smmla v0.4s, v1.16b, v2.16b
ummla v0.4s, v1.16b, v2.16b
usmmla v0.4s, v1.16b, v2.16b
usdot v0.4s, v1.16b, v2.16b
usdot v0.2s, v1.8b, v2.4b[1]
sudot v0.4s, v1.16b, v2.4b[1]
bfdot v0.4s, v1.8h, v2.8h
bfdot v0.2s, v1.4h, v2.2h[1]
bfmmla v0.4s, v1.8h, v2.8h
bfmlalb v0.4s, v1.8h, v2.8h
bfmlalt v0.4s, v1.8h, v2.8h
bfmlalb v0.4s, v1.8h, v2.h[5]
bfcvt h0, s1
bfcvtn v0.4h, v1.4s
bfcvtn2 v0.8h, v1.4s
fmla z0.s, p0/m, z1.s, z2.s
fmla z0.d, p0/m, z1.d, z2.d
ld1w {z0.s}, p0/z, [x1]
st1d {z0.d}, p0, [x1]
whilelo p0.s, x1, x2
ptrue p0.b
cntb x0
incw x0
sdot z0.s, z1.b, z2.b
mov z0.s, w1
rdvl x0, #1
faddv s0, p0, z1.s
