// gather.cu on the fake driver, as the definition has it: a request's bytes are put
// together, then converted one element after the other. It shares no code with the
// kernels, whose parameters it describes again.

#include "fake.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1920, U8 = 1, F16 = 2, F32 = 4 };
enum { BAD_SLAB = 1, BAD_LENGTH, BAD_OFFSET, BAD_PLACE, BAD_IMAGE, BAD_ORDER };

struct channel { uint32_t base; float mean, std, inverse; };

struct batch {
	uint64_t descriptors, tensor, fault, channels;
	uint32_t count, images, wire_bytes, elements, channel_count, pixels, stride, planar, normalise, magic, shift, slabs;
	struct { uint64_t at, bytes; } slab[32];
	struct channel three[3];
};

struct descriptor { uint64_t source; uint32_t place; uint16_t length, image; };

static float number(uint32_t bits) {
	float f;
	memcpy(&f, &bits, 4);
	return f;
}

static uint32_t bits_of(float f) {
	uint32_t b;
	memcpy(&b, &f, 4);
	return b;
}

static float widen(uint32_t raw, int wire) {
	if (wire == U8)
		return (float)raw;
	if (wire == F32)
		return number(raw);
	uint32_t sign = (raw & 0x8000) << 16, exponent = raw >> 10 & 31, fraction = raw & 0x3ff;
	if (exponent == 31)
		return number(sign | 0x7f800000 | fraction << 13);
	float f = exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(fraction | 0x400), (int)exponent - 25);
	return sign ? -f : f;
}

static uint32_t narrow(float f, int tensor) {
	uint32_t b = bits_of(f);
	if (tensor == F32)
		return b;
	if (tensor == U8) {
		double r = nearbyint((double)f);
		return r > 0 ? r > 255 ? 255 : (uint32_t)r : 0;
	}
	uint32_t sign = b >> 16 & 0x8000;
	if (f != f) {
		uint32_t payload = b >> 13 & 0x3ff;
		return sign | 0x7c00 | (payload ? payload : 0x200);
	}
	double a = fabs((double)f);
	if (a == 0)
		return sign;
	if (a >= 65520)
		return sign | 0x7c00;
	int exponent;
	frexp(a, &exponent);
	int step = exponent - 11 > -24 ? exponent - 11 : -24; // of the last bit
	double n = nearbyint(ldexp(a, -step));
	// n steps, where 2048 of them carry into the exponent by themselves.
	return sign | (step == -24 ? (uint32_t)n : ((uint32_t)(step + 24) << 10) + (uint32_t)n);
}

static void element(const struct batch *b, uint8_t *image, uint32_t e, uint32_t raw, int wire, int tensor) {
	uint32_t of = b->planar ? b->pixels : b->channel_count;
	uint32_t quotient = (uint32_t)((uint64_t)e * b->magic >> b->shift);
	if (quotient != e / of)
		abort(); // the multiplication is not the division that it stands for
	uint32_t c = b->planar ? e / of : e % of, pixel = b->planar ? e % of : e / of;
	const struct channel *ch = (const struct channel *)(uintptr_t)b->channels + c;
	if (b->normalise || wire != tensor) {
		volatile float f = widen(raw, wire);
		if (b->normalise) {
			if (f != f) {
				f = number(bits_of(f) | 0x400000);
			} else {
				volatile float less = f - ch->mean;
				f = less / ch->std;
			}
		}
		raw = narrow(f, tensor);
	}
	memcpy(image + (uint64_t)(ch->base + pixel * b->stride) * tensor, &raw, tensor);
}

static int type_of(const char *name) { return strstr(name, "u8") == name ? U8 : strstr(name, "f16") == name ? F16 : F32; }

static void gather(const struct fake_launch *launch) {
	const struct batch *b = launch->parameters[0];
	if (launch->sizes[0] != sizeof *b || sizeof *b != 640)
		abort();
	int copy = !strcmp(launch->name, "gather_copy"), wire = 1, tensor = 1;
	if (!strncmp(launch->name, "gather_three_", 13)) {
		tensor = type_of(launch->name + 13);
	} else if (!copy) {
		wire = type_of(launch->name + 11);
		tensor = type_of(strchr(launch->name + 11, '_') + 1);
	}
	const struct descriptor *d = (const struct descriptor *)(uintptr_t)b->descriptors;
	if (!fake_reach(d, b->count * sizeof *d, 0))
		return;
	uint64_t image_bytes = copy ? b->wire_bytes : (uint64_t)b->elements * tensor;
	uint8_t *bytes = malloc(b->wire_bytes), *there = calloc(1, b->wire_bytes);
	uint64_t *fault = (uint64_t *)(uintptr_t)b->fault;
	for (uint32_t i = 0; i < b->count;) {
		uint32_t first = i, image = d[i].image;
		memset(there, 0, b->wire_bytes);
		for (; i < b->count && d[i].image == image; i++) {
			uint32_t slab = (uint32_t)(d[i].source >> 48), length = d[i].length, why = 0;
			uint64_t offset = d[i].source << 16 >> 16;
			if (slab >= b->slabs) why = BAD_SLAB;
			else if (length == 0 || length > PIECE) why = BAD_LENGTH;
			else if (length > b->slab[slab].bytes || offset > b->slab[slab].bytes - length) why = BAD_OFFSET;
			else if (length > b->wire_bytes || d[i].place > b->wire_bytes - length) why = BAD_PLACE;
			else if (image >= b->images) why = BAD_IMAGE;
			if (why) {
				*fault = (uint64_t)why << 32 | i;
				continue;
			}
			const uint8_t *from = (const uint8_t *)(uintptr_t)(b->slab[slab].at + offset);
			if (!fake_reach(from, length, 0))
				goto out;
			memcpy(bytes + d[i].place, from, length);
			memset(there + d[i].place, 1, length);
		}
		uint8_t *to = (uint8_t *)(uintptr_t)b->tensor + image * image_bytes;
		if (image >= b->images)
			continue;
		if (!fake_reach(to, image_bytes, 1))
			goto out;
		for (uint32_t at = 0; at < b->wire_bytes; at += wire) {
			int have = 0;
			uint32_t raw = 0;
			for (int k = 0; k < wire; k++) {
				have += there[at + k];
				raw |= (uint32_t)bytes[at + k] << 8 * k;
			}
			if (have == wire && copy)
				to[at] = bytes[at];
			else if (have == wire)
				element(b, to, at / wire, raw, wire, tensor);
			else if (have > 0 && *fault == 0)
				*fault = (uint64_t)BAD_ORDER << 32 | first;
		}
	}
out:
	free(bytes);
	free(there);
}

#define GATHER(name) void fake_kernel_gather_##name(const struct fake_launch *launch) { gather(launch); }

GATHER(copy)
GATHER(three_u8_planes) GATHER(three_u8_pixels)
GATHER(three_f16_planes) GATHER(three_f16_pixels)
GATHER(three_f32_planes) GATHER(three_f32_pixels)
GATHER(any_u8_u8) GATHER(any_u8_f16) GATHER(any_u8_f32)
GATHER(any_f16_u8) GATHER(any_f16_f16) GATHER(any_f16_f32)
GATHER(any_f32_u8) GATHER(any_f32_f16) GATHER(any_f32_f32)

// The kernel sample: each result is the mean of a box of pixels, whose colours are computed one by one.

enum { RGB, RGBA, YUV, GREY, BAYER };

struct axis { int64_t begin; uint64_t step, box; uint32_t limit; uint16_t first, count; };

struct picture {
	uint64_t at;
	struct axis across, down;
	uint32_t plane[3], row, colour_row;
	uint8_t pixel, colour, half, kind, pitch, bits, high_first, order;
	uint16_t low, image;
	float scale;
	uint32_t colours;
};

struct sampling {
	uint64_t tensor;
	uint32_t pictures, width, height, stride, type, base[3], channels;
	float mix[3][4], pad[3], background[3];
	struct { int light, red_of_v, green_of_u, green_of_v, blue_of_u; } matrix[7];
	struct picture picture[32];
};

static const uint8_t *bytes_at(const struct picture *p, uint64_t place) { return (const uint8_t *)(uintptr_t)(p->at + place); }

// place_of is the bit of the picture at which sample c of a pixel begins: Y or red, then the others. Groups have four Y, U and V.
static uint64_t place_of(const struct picture *p, uint32_t x, uint32_t y, int c) {
	uint32_t group = p->half / 4;
	if (c)
		return 8 * (uint64_t)(y >> p->half / 2 % 2) * p->colour_row + (p->plane[c] + (x >> p->half % 2) * p->colour) * (uint64_t)p->bits;
	uint32_t sample = group ? x / 2 * 6 + y % 2 * 2 + x % 2 : x * p->pixel;
	return 8 * (uint64_t)(y >> group) * p->row + (p->plane[0] + sample) * (uint64_t)p->bits;
}

// high_byte is the 8 bits from there on.
static int high_byte(const struct picture *p, uint64_t bit) {
	int v = 0;
	for (uint64_t end = bit + 8; bit < end; bit++)
		v = v << 1 | (*bytes_at(p, bit / 8) >> (7 - bit % 8) & 1);
	return v;
}

// row_reach reports whether the kernel may read row y of a picture.
static int row_reach(const struct picture *p, uint32_t y) {
	uint32_t width = p->across.limit;
	if (p->kind >= GREY)
		return fake_reach(bytes_at(p, (uint64_t)y * p->row), p->high_first ? (width * 3 + 1) / 2 : (width * p->pitch + 7) / 8, 0);
	int reach = 1;
	for (int c = 0; c < 3; c++) {
		uint64_t first = place_of(p, 0, y, c) / 8, last = (place_of(p, width - 1, y, c) + 7) / 8 + (p->kind == RGBA && c == 0 ? 3 : 0);
		reach = reach && fake_reach(bytes_at(p, first), last - first + 1, 0);
	}
	return reach;
}

static uint32_t sample_of(const struct picture *p, uint32_t x, uint32_t y) {
	const uint8_t *row = bytes_at(p, (uint64_t)y * p->row);
	if (p->high_first) {
		const uint8_t *pair = row + x / 2 * 3;
		int low = p->bits - 8;
		return x % 2 ? (uint32_t)pair[2] << low | (pair[1] >> 4 & ((1 << low) - 1)) : (uint32_t)pair[0] << low | (pair[1] & ((1 << low) - 1));
	}
	uint32_t sample = 0;
	for (uint32_t i = 0, bit = x * p->pitch; i < p->bits; i++, bit++)
		sample |= (uint32_t)(row[bit / 8] >> bit % 8 & 1) << i;
	return sample;
}

// colour_at is the colour of a Bayer sample: 0 to 2.
static int colour_at(const struct picture *p, uint32_t x, uint32_t y) {
	int k = p->order ^ (y & 1) << 1 ^ (x & 1);
	return k == 0 ? 0 : k == 3 ? 2 : 1;
}

// bayer is a colour of a pixel: its own sample, or the mean of those next to it.
static uint32_t bayer(const struct picture *p, uint32_t x, uint32_t y, int colour) {
	uint32_t right = p->across.limit - 2, lower = p->down.limit - 2, sum = 0, count = 0;
	x = x < 1 ? 1 : x > right ? right : x;
	y = y < 1 ? 1 : y > lower ? lower : y;
	if (colour_at(p, x, y) == colour)
		return sample_of(p, x, y);
	for (uint32_t v = y - 1; v <= y + 1; v++)
		for (uint32_t u = x - 1; u <= x + 1; u++)
			if (colour_at(p, u, v) == colour)
				sum += sample_of(p, u, v), count++;
	return (sum + count / 2) / count;
}

static double level(double v) { return v < 0 ? 0 : v > 255 ? 255 : v; }

static void colours_of(const struct sampling *b, const struct picture *p, uint32_t x, uint32_t y, double *rgb) {
	if (p->kind >= GREY) {
		for (int c = 0; c < 3; c++)
			rgb[c] = level(((double)(p->kind == BAYER ? bayer(p, x, y, c) : sample_of(p, x, y)) - p->low) * p->scale);
		return;
	}
	int v[3];
	for (int c = 0; c < 3; c++)
		v[c] = high_byte(p, place_of(p, x, y, c));
	if (p->kind == YUV) { // in 1024ths of a level, as in models/sampling
		__typeof__(b->matrix[0]) m = b->matrix[p->colours];
		int light = (int)floor((v[0] < p->low ? 0 : v[0] - p->low) * m.light / 1024.0) + 512, blue = v[1] - 128, red = v[2] - 128;
		rgb[0] = level(floor((light + floor(m.red_of_v * red / 1024.0)) / 1024));
		rgb[1] = level(floor((light + floor((512 + m.green_of_u * blue) / 1024.0) + floor(m.green_of_v * red / 1024.0)) / 1024));
		rgb[2] = level(floor((light + floor(m.blue_of_u * blue / 1024.0)) / 1024));
		return;
	}
	double alpha = p->kind == RGBA ? high_byte(p, place_of(p, x, y, 0) + 24) / 255.0 : 1;
	for (int c = 0; c < 3; c++)
		rgb[c] = alpha * v[c] + (1 - alpha) * b->background[c];
}

// box sets the part of an axis that result i covers, in pixels.
static void box(const struct axis *a, uint32_t i, double *begin, double *end) {
	const double one = 4294967296.0;
	*begin = ((double)a->begin + (double)a->step * i) / one;
	*end = *begin + (double)a->box / one;
	*begin = *begin < 0 ? 0 : *begin;
	*end = *end > a->limit ? a->limit : *end;
}

// overlap is how much of pixel k a box covers.
static double overlap(double begin, double end, uint32_t k) {
	double low = begin > k ? begin : k, high = end < k + 1.0 ? end : k + 1.0;
	return high > low ? high - low : 0;
}

static void result_of(const struct sampling *b, const struct picture *p, uint32_t x, uint32_t y, double *rgb) {
	double left, right, top, bottom, sum = 0;
	box(&p->across, x, &left, &right);
	box(&p->down, y, &top, &bottom);
	rgb[0] = rgb[1] = rgb[2] = 0;
	for (uint32_t v = (uint32_t)top; v < bottom; v++)
		for (uint32_t u = (uint32_t)left; u < right; u++) {
			double colours[3], weight = overlap(left, right, u) * overlap(top, bottom, v);
			colours_of(b, p, u, v, colours);
			for (int c = 0; c < 3; c++)
				rgb[c] += weight * colours[c];
			sum += weight;
		}
	for (int c = 0; c < 3; c++)
		rgb[c] /= sum;
}

void fake_kernel_sample(const struct fake_launch *launch) {
	const struct sampling *b = launch->parameters[0];
	uint64_t pixels = (uint64_t)b->width * b->height;
	int size = 1 << b->type;
	if (launch->sizes[0] != sizeof *b || b->pictures > 32 || (uint64_t)launch->grid[0] * launch->block[0] < b->pictures * pixels)
		abort();
	for (uint32_t i = 0; i < b->pictures; i++) {
		const struct picture *p = &b->picture[i];
		uint8_t *image = (uint8_t *)(uintptr_t)b->tensor + p->image * pixels * b->channels * size;
		if (!fake_reach(image, pixels * b->channels * size, 1))
			return;
		for (uint32_t y = 0; y < p->down.limit; y++)
			if (!row_reach(p, y))
				return;
		for (uint32_t pixel = 0; pixel < pixels; pixel++) {
			uint32_t x = pixel % b->width - p->across.first, y = pixel / b->width - p->down.first;
			double rgb[3] = {b->pad[0], b->pad[1], b->pad[2]};
			if (x < p->across.count && y < p->down.count)
				result_of(b, p, x, y, rgb);
			for (uint32_t c = 0; c < b->channels; c++) {
				const float *mix = b->mix[c];
				uint32_t raw = narrow((float)(rgb[0] * mix[0] + rgb[1] * mix[1] + rgb[2] * mix[2] + mix[3]), size);
				memcpy(image + (b->base[c] + (uint64_t)pixel * b->stride) * size, &raw, size);
			}
		}
	}
}

struct fetch { uint64_t from[32], to[32], bytes[32]; uint32_t parts; };

void fake_kernel_fetch(const struct fake_launch *launch) {
	const struct fetch *f = launch->parameters[0];
	for (uint32_t p = 0; p < f->parts; p++) {
		void *to = (void *)(uintptr_t)f->to[p];
		const void *from = (const void *)(uintptr_t)f->from[p];
		if (!fake_reach(from, f->bytes[p], 0) || !fake_reach(to, f->bytes[p], 1))
			return;
		memcpy(to, from, f->bytes[p]);
	}
}

struct table { uint64_t from, to; uint32_t columns, row, column, image, to_row; };

struct collect {
	struct table table[48];
	struct { uint32_t rows, first, end; float threshold; } selection[16];
	uint32_t selections, images;
};

// reaches reports whether a kernel may read, or write, the elements of a table.
static int reaches(const struct table *t, uint32_t images, uint32_t rows, int write) {
	uint64_t last = (uint64_t)(images - 1) * t->image + (uint64_t)(rows - 1) * (write ? t->to_row : t->row) + (t->columns - 1) * (write ? 1 : t->column);
	return fake_reach((void *)(uintptr_t)(write ? t->to : t->from), 4 * (last + 1), write);
}

void fake_kernel_collect(const struct fake_launch *launch) {
	const struct collect *b = launch->parameters[0];
	if (launch->sizes[0] != sizeof *b || sizeof *b != 2184)
		abort();
	for (uint32_t n = 0; n < b->selections; n++) {
		const struct table *scores = b->table + b->selection[n].first, *end = b->table + b->selection[n].end;
		uint32_t rows = b->selection[n].rows, words = (rows + 31) / 32, *bitmap = (uint32_t *)(uintptr_t)scores->to;
		if (!fake_reach(bitmap, (uint64_t)4 * words * b->images, 1))
			return;
		for (const struct table *t = scores; t < end; t++)
			if (!reaches(t, b->images, rows, 0) || (t > scores && !reaches(t, b->images, rows, 1)))
				return;
		memset(bitmap, 0, (uint64_t)4 * words * b->images);
		for (uint32_t i = 0; i < rows * b->images; i++) {
			uint32_t image = i / rows, row = i % rows, selected = 0;
			const float *v = (const float *)(uintptr_t)scores->from + (uint64_t)image * scores->image + row * scores->row;
			for (uint32_t c = 0; c < scores->columns; c++)
				selected |= v[c * scores->column] >= b->selection[n].threshold || !isfinite(v[c * scores->column]);
			if (!selected)
				continue;
			bitmap[image * words + row / 32] |= 1u << row % 32;
			for (const struct table *t = scores + 1; t < end; t++) {
				const uint32_t *from = (const uint32_t *)(uintptr_t)t->from + (uint64_t)image * t->image + row * t->row;
				uint32_t *to = (uint32_t *)(uintptr_t)t->to + (uint64_t)image * t->image + row * t->to_row;
				for (uint32_t c = 0; c < t->columns; c++)
					to[c] = from[c * t->column];
			}
		}
	}
}
