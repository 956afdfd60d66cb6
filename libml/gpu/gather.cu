// The gather: one launch turns pieces of pictures in pinned host memory into the images
// of a batch tensor in device memory. `make ptx` makes gather.ptx from this file; the Go
// side is plan.go.
//
// A warp handles a piece in these steps:
//
//   fetch     1. read a run of descriptors: one read of host memory
//   check     2. compare each with slabs, request and tensor; report bad ones in
//                *fault and leave them out
//   load      3. request all 16-byte lines that contain the piece at once, 16 bytes
//                per thread; request the next piece before this one is converted
//   tile      4. write them to the warp's tile in shared memory, in which any
//                alignment is cheap
//   put       5. convert and write them; neighbouring threads write neighbouring elements
//
// No line crosses a page, so the bytes next to a piece that load reads are mapped, too.
// Other processes can write to the slabs. Their contents therefore determine only
// elements of the piece's own request.
//
// Every result equals device/cpu's bit for bit. It takes one subtraction and one division
// in f32, each rounded to nearest even. For bytes the host may replace the division, if
// it has found that the results are the same. NaNs are those of an x86 or Arm processor.
//
// The file includes no header, so that clang compiles it without CUDA.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define ALIGNED __attribute__((aligned(16)))
#ifdef __clang__
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))
#if __has_attribute(grid_constant)
#define __grid_constant__ __attribute__((grid_constant))
#else
#define __grid_constant__
#endif
#define __forceinline__ inline __attribute__((always_inline))
#define LANE (__nvvm_read_ptx_sreg_tid_x() & 31)
#define WARP (__nvvm_read_ptx_sreg_tid_x() >> 5)
#define BLOCK __nvvm_read_ptx_sreg_ctaid_x()
#define BLOCKS __nvvm_read_ptx_sreg_nctaid_x()
#else
#define LANE (threadIdx.x & 31)
#define WARP (threadIdx.x >> 5)
#define BLOCK blockIdx.x
#define BLOCKS gridDim.x
#endif

enum {
  WARPS = 8,                 // of a block
  LINE = 16,                 // bytes of a load
  LOADS = 4,                 // of a thread, in flight together
  WINDOW = 128,              // alignment of a warp's loads: smaller requests cost more
  TILE = 32 * LOADS * LINE,  // bytes
  PIECE = TILE - WINDOW,     // max bytes of a piece, so that any alignment fits a tile
};

// Descriptor is one piece. The host has sorted a request's pieces by place.
struct Descriptor {
  u64 source;  // slab << 48 | offset in the slab
  u32 place;   // in the request, in bytes
  u16 length;  // 1..PIECE
  u16 image;
};

struct Slab {
  u64 base, bytes;
};

// Channel is indexed by the wire's channel.
struct ALIGNED Channel {
  u32 base;  // of its first element in an image of the tensor, in elements
  float mean, std;
  float inverse;  // of std, if normalise is MULTIPLY
};

enum { SLABS = 32 };

// How elements are normalised. MULTIPLY is for u8 only: the host has found that for each of
// the 256 values the result equals DIVIDE's bit for bit.
enum { AS_IT_IS, DIVIDE, MULTIPLY };

// Batch is the argument of a launch.
struct Batch {
  const Descriptor *descriptors;
  u8 *tensor;
  u64 *fault;              // reason << 32 | index of a descriptor that was left out
  const Channel *channel;  // all of them
  u32 count, images;       // descriptors; images that fit the tensor
  u32 wireBytes;           // of a picture
  u32 elements;            // of an image
  u32 channels, pixels;
  u32 stride;              // from a channel's element to its next, in elements
  u32 planar;              // the wire is CHW
  u32 normalise;           // by mean and std: AS_IT_IS, DIVIDE or MULTIPLY
  u32 magic, shift;        // e / (planar ? pixels : channels) = e * magic >> shift, for e < 2^31
  u32 slabs;
  Slab slab[SLABS];
  Channel three[3];        // the first
};

// The reasons for a bad descriptor, as in plan.go.
enum { BAD_SLAB = 1, BAD_LENGTH, BAD_OFFSET, BAD_PLACE, BAD_IMAGE, BAD_ORDER };

struct ALIGNED Line {
  u32 x, y, z, w;
};

// ---- instructions of PTX that C++ lacks

static __device__ __forceinline__ Line readLine(u64 at) {
  Line l;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(l.x), "=r"(l.y), "=r"(l.z), "=r"(l.w) : "l"(at));
  return l;
}

static __device__ __forceinline__ u32 readByte(u64 at) {
  u32 b;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(b) : "l"(at));
  return b;
}

static __device__ __forceinline__ void report(u64 *fault, u32 why, u32 index) {
  u64 v = (u64)why << 32 | index;
  asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(fault), "l"(v) : "memory");
}

static __device__ __forceinline__ u32 from(u32 lane, u32 v) {
  u32 r;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(r) : "r"(v), "r"(lane));
  return r;
}

static __device__ __forceinline__ void together() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// join returns bytes s..s+3 of the eight bytes low, high; s counts in bits.
static __device__ __forceinline__ u32 join(u32 low, u32 high, u32 s) {
  u32 r;
  asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(low), "r"(high), "r"(s));
  return r;
}

static __device__ __forceinline__ float less(float a, float b) {
  float r;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

static __device__ __forceinline__ float over(float a, float b) {
  float r;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// exactly returns a * b + c, rounded once.
static __device__ __forceinline__ float exactly(float a, float b, float c) {
  float r;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}

static __device__ __forceinline__ float times(float a, float b) {
  float r;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

static __device__ __forceinline__ u32 bits(float f) {
  u32 r;
  asm("mov.b32 %0, %1;" : "=r"(r) : "f"(f));
  return r;
}

static __device__ __forceinline__ float number(u32 b) {
  float r;
  asm("mov.b32 %0, %1;" : "=f"(r) : "r"(b));
  return r;
}

static __device__ __forceinline__ u32 half(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}

static __device__ __forceinline__ float single(u32 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((u16)h));
  return f;
}

static __device__ __forceinline__ u32 byte(float f) {  // ties to even, saturates, NaN is 0
  u32 r;
  asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(r) : "f"(f));
  return r;
}

// ---- elements, as bits

enum { U8, F16, F32 };

template <int T> struct Element;
template <> struct Element<U8> { typedef u8 type; };
template <> struct Element<F16> { typedef u16 type; };
template <> struct Element<F32> { typedef u32 type; };

// widen is exact, also for the payload of a NaN.
template <int W> static __device__ __forceinline__ float widen(u32 raw) {
  if (W == U8) return (float)raw;
  if (W == F32) return number(raw);
  if ((raw & 0x7fff) > 0x7c00) return number((raw & 0x8000) << 16 | 0x7f800000 | (raw & 0x3ff) << 13);
  return single(raw);
}

// narrow rounds; NANS is true if f may be a NaN.
template <int T, bool NANS> static __device__ __forceinline__ u32 narrow(float f) {
  if (T == U8) return byte(f);
  u32 b = bits(f);
  if (T == F32) return b;
  if (NANS && (b & 0x7fffffff) > 0x7f800000) {
    u32 payload = b >> 13 & 0x3ff;
    return b >> 16 & 0x8000 | 0x7c00 | (payload ? payload : 0x200);
  }
  return half(f);
}

template <int W> static __device__ __forceinline__ float normal(float f, u32 how, const Channel &c) {
  if (W != U8 && f != f) return number(bits(f) | 0x400000);
  f = less(f, c.mean);
  if (W != U8 || how == DIVIDE) return over(f, c.std);
  float q = times(f, c.inverse);
  return exactly(exactly(-q, c.std, f), c.inverse, q);  // add the remainder, divided by std
}

template <int W, int T> static __device__ __forceinline__ u32 convert(u32 raw, u32 how, const Channel &c) {
  if (how == AS_IT_IS && W == T) return raw;
  float f = widen<W>(raw);
  if (how != AS_IT_IS) f = normal<W>(f, how, c);
  return narrow<T, W != U8>(f);
}

// ---- pieces

// Piece is a checked descriptor.
struct Piece {
  u64 at;  // address of its first byte
  u32 place, length, image;
};

static __device__ __forceinline__ u32 check(const Batch &b, u64 source, u32 place, u32 length, u32 image, u64 *at) {
  u32 slab = source >> 48;
  if (slab >= b.slabs) return BAD_SLAB;
  if (length == 0 || length > PIECE) return BAD_LENGTH;
  u64 offset = source << 16 >> 16, bytes = b.slab[slab].bytes;
  if (length > bytes || offset > bytes - length) return BAD_OFFSET;
  if (length > b.wireBytes || place > b.wireBytes - length) return BAD_PLACE;
  if (image >= b.images) return BAD_IMAGE;
  *at = b.slab[slab].base + offset;
  return 0;
}

// each calls put(piece, tile, skew, index) for each piece of a warp. The piece's bytes begin
// at tile + skew.
template <class Put> static __device__ __forceinline__ void each(const Batch &b, Put put) {
  __shared__ Line tiles[WARPS][TILE / LINE + 1];  // and the bytes that join reads past the last word
  Line *tile = tiles[WARP];
  u32 lane = LANE, warps = BLOCKS * WARPS, warp = BLOCK * WARPS + WARP;
  // Shares differ by at most one, so that few pieces are divided among all warps.
  u32 share = b.count / warps, rest = b.count % warps;
  u32 next = warp * share + (warp < rest ? warp : rest);
  u32 end = next + share + (warp < rest);
  for (; next < end; next += 32) {
    u32 n = end - next < 32 ? end - next : 32;
    u64 at = 0;
    u32 place = 0, length = 0, image = 0;
    if (lane < n) {
      Line d = readLine((u64)(b.descriptors + next + lane));
      place = d.z, length = d.w & 0xffff, image = d.w >> 16;
      u32 why = check(b, (u64)d.y << 32 | d.x, place, length, image, &at);
      if (why) report(b.fault, why, next + lane), length = 0;
    }
    Line line[LOADS];
    Piece ahead;
    auto load = [&](u32 i) {
      ahead.at = (u64)from(i, at >> 32) << 32 | from(i, at);
      ahead.place = from(i, place), ahead.length = from(i, length), ahead.image = from(i, image);
      u64 first = ahead.at & ~(u64)(WINDOW - 1);
      u32 before = (ahead.at - first) / LINE, lines = ahead.length ? (ahead.at - first + ahead.length + LINE - 1) / LINE : 0;
#pragma unroll
      for (u32 k = 0; k < LOADS; k++)
        if (lane + 32 * k < lines && (k || lane >= before)) line[k] = readLine(first + LINE * (lane + 32 * k));
    };
    load(0);
#pragma unroll 1
    for (u32 i = 0; i < n; i++) {
      Piece p = ahead;
      u32 skew = p.at & (WINDOW - 1), lines = (skew + p.length + LINE - 1) / LINE;
      together();  // no thread reads the tile any more
#pragma unroll
      for (u32 k = 0; k < LOADS; k++)
        if (lane + 32 * k < lines) tile[lane + 32 * k] = line[k];
      together();
      if (i + 1 < n) load(i + 1);
      if (p.length) put(p, (const u8 *)tile, skew, next + i);
    }
  }
}

// word returns the four bytes from offset o on, of any alignment.
static __device__ __forceinline__ u32 word(const u8 *tile, u32 o) {
  const u32 *w = (const u32 *)tile + (o >> 2);
  return join(w[0], w[1], o << 3 & 31);
}

// gather_copy: the tensor has the same bits as the wire.
static __device__ __forceinline__ void putCopy(const Batch &b, const Piece &p, const u8 *tile, u32 skew) {
  u8 *to = b.tensor + (u64)p.image * b.wireBytes + p.place;
  u32 lane = LANE;
  u32 head = (u32)(0 - (u64)to) & (LINE - 1);
  if (head > p.length) head = p.length;
  u32 lines = (p.length - head) / LINE, tail = head + lines * LINE;
  Line *out = (Line *)(to + head);
#pragma unroll 1
  for (u32 i = lane; i < lines; i += 32) {
    u32 o = skew + head + i * LINE, s = o << 3 & 31;
    const u32 *w = (const u32 *)tile + (o >> 2);
    Line l;
    l.x = join(w[0], w[1], s), l.y = join(w[1], w[2], s), l.z = join(w[2], w[3], s), l.w = join(w[3], w[4], s);
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(out + i), "r"(l.x), "r"(l.y), "r"(l.z), "r"(l.w) : "memory");
  }
  u32 i = lane < head ? lane : tail + lane - head;
  if (i < p.length) to[i] = tile[skew + i];
}

template <int T> static __device__ __forceinline__ void store4(typename Element<T>::type *to, u32 a, u32 b, u32 c, u32 d) {
  if (T == U8) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(a | b << 8 | c << 16 | d << 24) : "memory");
  } else if (T == F16) {
    asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(to), "r"(a | b << 16), "r"(c | d << 16) : "memory");
  } else {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  }
}

// For pictures of three u8 channels, HWC, a thread handles four pixels, 12 bytes. So four
// elements of a plane are one store. The number of pixels is a multiple of four.
template <int T, bool PLANES, u32 HOW>
static __device__ __forceinline__ void putFours(const Batch &b, typename Element<T>::type *image, const u8 *tile, u32 o, u32 g, u32 last) {
#pragma unroll 1
  for (; g < last; g += 32, o += 32 * 12) {
    const u32 *w = (const u32 *)tile + (o >> 2);
    u32 s = o << 3 & 31, w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
    u32 x[3] = {join(w0, w1, s), join(w1, w2, s), join(w2, w3, s)};
    u32 e[12];
#pragma unroll
    for (u32 i = 0; i < 12; i++) e[i] = convert<U8, T>(x[i / 4] >> i % 4 * 8 & 0xff, HOW, b.three[i % 3]);
    if (PLANES) {
#pragma unroll
      for (u32 c = 0; c < 3; c++) store4<T>(image + b.three[c].base + g * 4, e[c], e[c + 3], e[c + 6], e[c + 9]);
    } else {
      bool turned = b.three[0].base;
#pragma unroll
      for (u32 i = 0; i < 12; i += 3) {
        u32 a = e[i], c = e[i + 2];
        e[i] = turned ? c : a, e[i + 2] = turned ? a : c;
      }
#pragma unroll
      for (u32 i = 0; i < 12; i += 4) store4<T>(image + g * 12 + i, e[i], e[i + 1], e[i + 2], e[i + 3]);
    }
  }
}

template <int T, bool PLANES>
static __device__ __forceinline__ void putThree(const Batch &b, const Piece &p, const u8 *tile, u32 skew) {
  typedef typename Element<T>::type E;
  E *image = (E *)b.tensor + (u64)p.image * b.elements;
  u32 lane = LANE, end = p.place + p.length, how = b.normalise;
  u32 first = (p.place + 11) / 12, last = end / 12, o = skew + (first + lane) * 12 - p.place;
  if (how == MULTIPLY) putFours<T, PLANES, MULTIPLY>(b, image, tile, o, first + lane, last);
  else if (how == DIVIDE) putFours<T, PLANES, DIVIDE>(b, image, tile, o, first + lane, last);
  else putFours<T, PLANES, AS_IT_IS>(b, image, tile, o, first + lane, last);
  // The rest at the two ends of the piece, each less than four pixels: at most 22 bytes.
  u32 head = first * 12 < end ? first * 12 - p.place : p.length;
  u32 tail = last < first ? p.length : last * 12 - p.place;
  u32 i = lane < head ? lane : tail + lane - head;
  if (i < p.length) {
    u32 at = p.place + i, pixel = at / 3, c = at - pixel * 3;
    const Channel &ch = b.three[c];
    image[ch.base + pixel * (PLANES ? 1 : 3)] = (E)convert<U8, T>(tile[skew + i], how, ch);
  }
}

// assemble returns the element that begins in the piece's last bytes and ends in later pieces.
// On a failure it sets *why.
static __device__ __forceinline__ u32 assemble(const Batch &b, const Piece &p, const u8 *tile, u32 skew, u32 index, u32 have, u32 size, u32 *why) {
  u32 raw = 0;
#pragma unroll 1
  for (u32 i = 0; i < have; i++) raw |= (u32)tile[skew + p.length - have + i] << 8 * i;
  u32 place = p.place + p.length;
#pragma unroll 1
  while (have < size) {
    u64 at;
    if (++index >= b.count) {
      *why = BAD_ORDER;
      return 0;
    }
    Line d = readLine((u64)(b.descriptors + index));
    if ((*why = check(b, (u64)d.y << 32 | d.x, d.z, d.w & 0xffff, d.w >> 16, &at))) return 0;
    if (d.z != place || d.w >> 16 != p.image) {
      *why = BAD_ORDER;
      return 0;
    }
#pragma unroll 1
    for (u32 i = 0; i < (d.w & 0xffff) && have < size; i++, have++, place++) raw |= readByte(at + i) << 8 * have;
  }
  return raw;
}

static __device__ __forceinline__ u32 clamp(int v) { return v < 0 ? 0 : v > 255 ? 255 : v; }

// Any input, one element per thread.
template <int W, int T>
static __device__ __forceinline__ void putAny(const Batch &b, const Piece &p, const u8 *tile, u32 skew, u32 index) {
  typedef typename Element<T>::type E;
  const u32 size = W == U8 ? 1 : W == F16 ? 2 : 4;
  E *image = (E *)b.tensor + (u64)p.image * b.elements;
  auto put = [&](u32 e, u32 raw) {
    u32 q = (u64)e * b.magic >> b.shift, r = e - q * (b.planar ? b.pixels : b.channels);
    u32 c = b.planar ? q : r, pixel = b.planar ? r : q;
    const Channel ch = b.channel[c];
    image[ch.base + pixel * b.stride] = (E)convert<W, T>(raw, b.normalise, ch);
  };
  // The first element that begins in the piece, and the first that does not end in it.
  u32 end = p.place + p.length, first = (p.place + size - 1) / size, last = end / size;
#pragma unroll 1
  for (u32 e = first + LANE; e < last; e += 32) {
    u32 o = skew + e * size - p.place;
    put(e, W == U8 ? tile[o] : W == F16 ? word(tile, o) & 0xffff : word(tile, o));
  }
  if (W == U8 || LANE != 0) return;
  if (first * size != p.place) {  // the piece before has written the first element, or reported this piece
    Line d = {0, 0, 0, 0};
    if (index > 0) d = readLine((u64)(b.descriptors + index - 1));
    if (d.w >> 16 != p.image || d.z + (d.w & 0xffff) != p.place) report(b.fault, BAD_ORDER, index);
  }
  if (last >= first && last * size != end) {
    u32 why = 0, raw = assemble(b, p, tile, skew, index, end - last * size, size, &why);
    if (why) report(b.fault, why, index);
    else put(last, raw);
  }
}

// ---- kernels

#define GATHER(name) extern "C" __global__ void __launch_bounds__(WARPS * 32) name(const __grid_constant__ Batch b)

GATHER(gather_copy) {
  each(b, [&](const Piece &p, const u8 *tile, u32 skew, u32) { putCopy(b, p, tile, skew); });
}

#define THREE(name, T, PLANES)                                                                                    \
  GATHER(name) {                                                                                                  \
    each(b, [&](const Piece &p, const u8 *tile, u32 skew, u32) { putThree<T, PLANES>(b, p, tile, skew); });       \
  }

THREE(gather_three_u8_planes, U8, true)
THREE(gather_three_u8_pixels, U8, false)
THREE(gather_three_f16_planes, F16, true)
THREE(gather_three_f16_pixels, F16, false)
THREE(gather_three_f32_planes, F32, true)
THREE(gather_three_f32_pixels, F32, false)

#define ANY(name, W, T)                                                                                              \
  GATHER(name) {                                                                                                     \
    each(b, [&](const Piece &p, const u8 *tile, u32 skew, u32 index) { putAny<W, T>(b, p, tile, skew, index); });    \
  }

ANY(gather_any_u8_u8, U8, U8)
ANY(gather_any_u8_f16, U8, F16)
ANY(gather_any_u8_f32, U8, F32)
ANY(gather_any_f16_u8, F16, U8)
ANY(gather_any_f16_f16, F16, F16)
ANY(gather_any_f16_f32, F16, F32)
ANY(gather_any_f32_u8, F32, U8)
ANY(gather_any_f32_f16, F32, F16)
ANY(gather_any_f32_f32, F32, F32)

// ---- pictures of any size and format

// sample makes images of a batch tensor of pictures in device memory, one result per thread:
//
//   fetch     1. read the samples of those pixels that the result depends on
//   sample    2. add up their colours, each with its part of a box
//   convert   3. mix red, green and blue into the channels of the tensor
//
// A box has the length of a pixel for bilinear results, and for area that of what a result covers.
// models/sampling does the same on a CPU; it rounds more, and differs by less than a level of 255.
// sampling.go computes the parameters.

enum { PICTURES = 32 };

// How the samples of a pixel become a colour. GREY and BAYER have samples of any size and packing.
enum { RGB, RGBA, YUV, GREY, BAYER };

struct Axis {
  u64 begin, step, box;  // of the first result's box, to the next, and its length, in 2^-32 of a pixel
  u32 limit;             // of the picture
  u16 first, count;      // results in the tensor; the others are padding
};

struct Picture {
  u64 at;              // address of its first byte
  Axis across, down;
  u32 plane[3];        // samples before the first ones
  u32 row, colourRow;  // bytes from a row to the next, in the first plane and the others
  u8 pixel, colour;    // samples from a pixel to the next, in the first plane and the others
  u8 half;             // 1: pairs of columns share colours; 3: pairs of rows, too; 7: these are one row of groups
  u8 kind;
  u8 pitch;            // bits from a sample to the next, of GREY and BAYER
  u8 bits;             // of a sample
  u8 highFirst;        // two samples in three bytes: high, low of both, high
  u8 order;            // of BAYER
  u16 low, image;      // the sample of black; in the tensor
  float scale;         // levels of a sample's step
  u32 colours;         // of YUV: the matrix
};

// Matrix has the parts of Y, U and V in red, green and blue, in 2^-20 of a level.
struct Matrix {
  int light, redOfV, greenOfU, greenOfV, blueOfU;
};

// Sampling is the argument of a launch.
struct Sampling {
  u8 *tensor;
  u32 pictures, width, height, stride, type;  // stride as in Batch; U8, F16 or F32
  u32 base[3], channels;                      // as in Channel
  float mix[3][4];                            // by channel: red, green, blue, one
  float pad[3], background[3];                // colours
  Matrix matrix[7];
  Picture picture[PICTURES];
};

// Span is the part of an axis in a box, relative to the first pixel.
struct Span {
  u32 first;
  float begin, end;
};

static __device__ __forceinline__ Span span(const Axis &a, u32 i) {
  long long begin = a.begin + a.step * i, end = begin + a.box, limit = (u64)a.limit << 32;
  if (begin < 0) begin = 0;
  if (end > limit) end = limit;
  const float one = 1.0f / 4294967296.0f;
  return {(u32)(begin >> 32), (float)(u32)begin * one, (float)(end - (begin >> 32 << 32)) * one};
}

// overlap returns how much of pixel k a span covers.
static __device__ __forceinline__ float overlap(const Span &s, u32 k) {
  float low = k, high = k + 1;
  return (high < s.end ? high : s.end) - (low > s.begin ? low : s.begin);
}

static __device__ __forceinline__ u32 sampleOf(const Picture &p, u32 x, u32 y) {
  u32 bit = x * p.pitch;
  u64 at = p.at + (u64)y * p.row + (bit >> 3);
  u32 a = readByte(at), mask = (1 << p.bits) - 1;
  if (p.bits == 8) return a;
  u32 b = readByte(at + 1);
  if (!p.highFirst) return (a | b << 8) >> (bit & 7) & mask;
  u32 high = x & 1 ? b : a, low = x & 1 ? a : b;
  return (high << (p.bits - 8) | low >> (x & 1) * 4 & mask >> 8) & mask;
}

// bayer interpolates the colours that a pixel lacks, in whole samples.
static __device__ __forceinline__ void bayer(const Picture &p, u32 x, u32 y, u32 *v) {
  u32 width = p.across.limit, height = p.down.limit;
  x = x < 1 ? 1 : x > width - 2 ? width - 2 : x;
  y = y < 1 ? 1 : y > height - 2 ? height - 2 : y;
  u32 here = 0, across = 0, down = 0, corners = 0;
#pragma unroll 1
  for (u32 i = 0; i < 9; i++) {
    u32 column = i % 3, row = i / 3, s = sampleOf(p, x + column - 1, y + row - 1);
    if (column != 1 && row != 1) corners += s;
    else if (column != 1) across += s;
    else if (row != 1) down += s;
    else here = s;
  }
  u32 cross = (across + down + 2) / 4;
  corners = (corners + 2) / 4, across = (across + 1) / 2, down = (down + 1) / 2;
  u32 order = p.order ^ (y & 1) << 1 ^ (x & 1);
  bool green = order == 1 || order == 2, turned = order & 2;  // turned: blue is in the row
  v[0] = green ? across : here, v[1] = green ? here : cross, v[2] = green ? down : corners;
  if (turned) {
    u32 red = v[0];
    v[0] = v[2], v[2] = red;
  }
}

// colourOf sets the levels of red, green and blue of a pixel, 0 to 255.
static __device__ __forceinline__ void colourOf(const Sampling &b, const Picture &p, u32 x, u32 y, float *rgb) {
  u32 v[3];
  if (p.kind >= GREY) {
    if (p.kind == BAYER) bayer(p, x, y, v);
    else v[0] = v[1] = v[2] = sampleOf(p, x, y);
#pragma unroll
    for (u32 c = 0; c < 3; c++) {
      float level = v[c] > p.low ? (float)(v[c] - p.low) * p.scale : 0;
      rgb[c] = level < 255 ? level : 255;
    }
    return;
  }
  // Of groups of four pixels, the second row's samples come after the first's.
  u32 group = p.half >> 2, pixel = x * p.pixel + 2 * (y & group) - 2 * (x & group), colour = (x >> (p.half & 1)) * p.colour;
  u64 first = p.at + (u64)(y >> group) * p.row, others = p.at + (u64)(y >> (p.half >> 1 & 1)) * p.colourRow;
  u64 row[3] = {first, others, others};
  u32 sample[3] = {p.plane[0] + pixel, p.plane[1] + colour, p.plane[2] + colour};
  if (p.bits == 8) {
#pragma unroll
    for (u32 c = 0; c < 3; c++) v[c] = readByte(row[c] + sample[c]);
  } else {  // the high 8 of 10
#pragma unroll
    for (u32 c = 0; c < 3; c++) {
      u32 bit = sample[c] * 10;
      u64 at = row[c] + (bit >> 3);
      v[c] = (readByte(at) << 8 | readByte(at + 1)) >> (8 - (bit & 7)) & 255;
    }
  }
  if (p.kind == YUV) {
    // In 1024ths of a level, as in models/sampling.
    const Matrix &m = b.matrix[p.colours];
    int light = (int)v[0] - p.low, blue = (int)v[1] - 128, red = (int)v[2] - 128;
    light = (m.light * (light < 0 ? 0 : light) >> 10) + 512;
    v[0] = clamp((light + (m.redOfV * red >> 10)) >> 10);
    v[1] = clamp((light + ((512 + m.greenOfU * blue) >> 10) + (m.greenOfV * red >> 10)) >> 10);
    v[2] = clamp((light + (m.blueOfU * blue >> 10)) >> 10);
  }
  u32 alpha = p.kind == RGBA ? readByte(first + pixel + 3) : 255;
#pragma unroll
  for (u32 c = 0; c < 3; c++) {
    rgb[c] = v[c];
    if (alpha != 255) rgb[c] = ((float)alpha * rgb[c] + (float)(255 - alpha) * b.background[c]) * (1.0f / 255);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) sample(const __grid_constant__ Sampling b) {
  u32 pixels = b.width * b.height, result = (BLOCK * WARPS + WARP) * 32 + LANE, picture = result / pixels;
  if (picture >= b.pictures) return;
  const Picture &p = b.picture[picture];
  u32 pixel = result - picture * pixels, row = pixel / b.width, column = pixel - row * b.width;
  float rgb[3] = {b.pad[0], b.pad[1], b.pad[2]};
  if (column - p.across.first < p.across.count && row - p.down.first < p.down.count) {
    Span across = span(p.across, column - p.across.first), down = span(p.down, row - p.down.first);
    rgb[0] = rgb[1] = rgb[2] = 0;
#pragma unroll 1
    for (u32 y = 0; (float)y < down.end; y++) {
#pragma unroll 1
      for (u32 x = 0; (float)x < across.end; x++) {
        float colour[3], weight = overlap(down, y) * overlap(across, x);
        colourOf(b, p, across.first + x, down.first + y, colour);
#pragma unroll
        for (u32 c = 0; c < 3; c++) rgb[c] = exactly(weight, colour[c], rgb[c]);
      }
    }
    float part = over(1, (down.end - down.begin) * (across.end - across.begin));
#pragma unroll
    for (u32 c = 0; c < 3; c++) rgb[c] = times(rgb[c], part);
  }
#pragma unroll 1
  for (u32 c = 0; c < b.channels; c++) {
    const float *mix = b.mix[c];
    float v = exactly(rgb[0], mix[0], exactly(rgb[1], mix[1], exactly(rgb[2], mix[2], mix[3])));
    u64 at = (u64)p.image * pixels * b.channels + b.base[c] + pixel * b.stride;
    if (b.type == U8) b.tensor[at] = byte(v);
    else if (b.type == F16) ((u16 *)b.tensor)[at] = half(v);
    else ((float *)b.tensor)[at] = v;
  }
}

// ---- outputs to the host

// Fetch is the argument of fetch: parts of device memory to copy to pinned host memory. Both
// sides are aligned to a line.
enum { PARTS = 32 };

struct Fetch {
  u64 from[PARTS], to[PARTS], bytes[PARTS];
  u32 parts;
};

extern "C" __global__ void __launch_bounds__(WARPS * 32) fetch(const __grid_constant__ Fetch f) {
  u32 thread = (BLOCK * WARPS + WARP) * 32 + LANE, threads = BLOCKS * WARPS * 32;
  for (u32 p = 0; p < f.parts; p++) {
    u64 lines = f.bytes[p] / LINE, rest = f.bytes[p] % LINE;
#pragma unroll 1
    for (u64 i = thread; i < lines; i += threads) ((Line *)f.to[p])[i] = ((const Line *)f.from[p])[i];
    if (thread < rest) ((u8 *)f.to[p])[lines * LINE + thread] = ((const u8 *)f.from[p])[lines * LINE + thread];
  }
}

// ---- rows of outputs to the host

// collect copies only the rows that a decoder reads: those with a score that is not below a threshold, or not finite.
// A warp handles 32 rows of an image:
//
//   scan      1. read the scores, neighbouring threads neighbouring ones
//   join      2. or the threads' bits: a word of the bitmap
//   copy      3. copy these rows of each table; neighbouring threads write neighbouring columns, also if they read from
//                far apart, because small writes to the host are slow

enum { TABLES = 48, SELECTIONS = 16, CELLS = 8 };

// Table is columns of an output, for each row. Its elements have four bytes.
struct Table {
  u64 from, to;            // of image 0, in device memory and pinned host memory
  u32 columns;
  u32 row, column, image;  // elements from a row, a column and an image to the next
  u32 toRow;               // in host memory, where the columns of a row are neighbours
};

// Selection has its scores in table first, whose `to` is the bitmap. The tables after it, up to end, are copied.
struct Selection {
  u32 rows, first, end;
  float threshold;
};

// Collect is the argument of a launch.
struct Collect {
  Table table[TABLES];
  Selection selection[SELECTIONS];
  u32 selections, images;
};

// cells calls use(row, column, value) for the thread's part of the 32 rows from `from` on, of which there are `rows`. It
// requests CELLS values at once. At the ends it uses the last ones again. Neighbouring threads have columns, or rows.
template <class Use>
static __device__ __forceinline__ void cells(const Table &t, const u32 *from, u32 rows, bool columns, Use use) {
#pragma unroll 1
  for (u32 k = 0; k < t.columns; k += CELLS) {
    u32 row[CELLS], column[CELLS], value[CELLS];
#pragma unroll
    for (u32 j = 0; j < CELLS; j++) {
      row[j] = LANE, column[j] = k + j < t.columns ? k + j : t.columns - 1;
      if (columns) {
        u32 i = 32 * column[j] + LANE;
        row[j] = i / t.columns, column[j] = i - row[j] * t.columns;
      }
      if (row[j] >= rows) row[j] = rows - 1;
      value[j] = from[row[j] * t.row + column[j] * t.column];
    }
#pragma unroll
    for (u32 j = 0; j < CELLS; j++) use(row[j], column[j], value[j]);
  }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) collect(const __grid_constant__ Collect b) {
#pragma unroll 1
  for (u32 task = BLOCK * WARPS + WARP;; task += BLOCKS * WARPS) {
    u32 n = 0, i = task, words = 0;
    for (; n < b.selections; n++) {
      words = (b.selection[n].rows + 31) / 32;
      if (i < words * b.images) break;
      i -= words * b.images;
    }
    if (n == b.selections) return;
    const Selection &s = b.selection[n];
    u32 image = i / words, first = (i - image * words) * 32, found = 0;
    const Table &scores = b.table[s.first];
    auto begin = [&](const Table &t, u32 row) { return (u64)image * t.image + first * row; };

    cells(scores, (const u32 *)scores.from + begin(scores, scores.row), s.rows - first, scores.column < scores.row, [&](u32 row, u32, u32 value) {
      float v = number(value);
      if (!(v < s.threshold && v > -__builtin_inff())) found |= 1 << row;
    });
#pragma unroll
    for (u32 d = 16; d; d /= 2) found |= from(LANE ^ d, found);
    if (LANE == 0) ((u32 *)scores.to)[i] = found;
    if (!found) continue;
#pragma unroll 1
    for (u32 k = s.first + 1; k < s.end; k++) {
      const Table &t = b.table[k];
      u32 *to = (u32 *)t.to + begin(t, t.toRow);
      cells(t, (const u32 *)t.from + begin(t, t.row), s.rows - first, true, [&](u32 row, u32 column, u32 value) {
        if (found >> row & 1) to[row * t.toRow + column] = value;
      });
    }
  }
}
