// What the cases draw: sizes, numbers, images. The same seed draws the same in every build.
#pragma once

#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

#include "kernels/shapes.h"
#include "memory.h"

namespace rlopt::fuzz {

using kernels::Bfloat16;
using kernels::Element;
using kernels::Shape;

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  int64_t of(std::initializer_list<int64_t> values) { return *(values.begin() + below(values.size())); }
  /// Both ends are drawn.
  int64_t between(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(below(static_cast<uint64_t>(last - first + 1)));
  }
  bool once_in(uint64_t times) { return below(times) == 0; }

  /// About normal, by a sum: the standard library's own draws differ from one library to the next.
  float number() {
    uint64_t bits = engine_();
    double sum = 0;
    for (int i = 0; i < 4; ++i, bits >>= 16) sum += static_cast<double>(bits & 0xffffU) / 65536.0 - 0.5;
    return static_cast<float>(sum * 1.732);
  }

 private:
  size_t below(uint64_t count) { return static_cast<size_t>(engine_() % count); }

  std::mt19937_64 engine_;
};

inline uint16_t rounded(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

inline float widened(uint16_t word) {
  const uint32_t bits = static_cast<uint32_t>(word) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// A tensor in memory of its own.
struct Tensor {
  Shape shape;
  Memory memory;

  double at(int64_t element) const {
    if (shape.element == Element::kBfloat16) {
      uint16_t word;
      std::memcpy(&word, memory.data() + 2 * element, sizeof(word));
      return widened(word);
    }
    float value;
    std::memcpy(&value, memory.data() + 4 * element, sizeof(value));
    return value;
  }
  void put(int64_t element, float value) {
    const uint16_t word = rounded(value);
    if (shape.element == Element::kBfloat16)
      std::memcpy(memory.data() + 2 * element, &word, sizeof(word));
    else
      std::memcpy(memory.data() + 4 * element, &value, sizeof(value));
  }
  double at(int64_t n, int64_t c, int64_t y, int64_t x) const {
    return at(n * shape.strides[0] + c * shape.strides[1] + y * shape.strides[2] + x * shape.strides[3]);
  }
};

/// Elements from the first to the last one.
inline int64_t span_of(const Shape& shape) {
  int64_t span = 1;
  for (size_t i = 0; i < shape.rank; ++i) {
    if (shape.sizes[i] == 0) return 0;
    span += (shape.sizes[i] - 1) * shape.strides[i];
  }
  return span;
}

inline Tensor empty(Draw& draw, const Shape& shape) {
  const auto size = static_cast<size_t>(span_of(shape) * kernels::bytes_of(shape.element));
  return {shape, Memory(size, draw.once_in(2))};
}

/// Numbers of size one, with some that are zero, far larger, or far smaller in one of four.
inline Tensor tensor(Draw& draw, const Shape& shape) {
  Tensor made = empty(draw, shape);
  const int64_t kind = draw.between(0, 7), span = span_of(shape);
  for (int64_t i = 0; i < span; ++i) {
    float value = draw.number();
    if (kind == 0 && !draw.once_in(8)) value = 0;
    if (kind == 1 && draw.once_in(64)) value *= static_cast<float>(std::pow(10.0, draw.between(-8, 8)));
    made.put(i, value);
  }
  return made;
}

inline Memory floats(Draw& draw, int64_t count) {
  Memory made(static_cast<size_t>(count) * sizeof(float), draw.once_in(2));
  for (int64_t i = 0; i < count; ++i) made.floats()[i] = draw.number();
  return made;
}

/// Numbers for a weight or a bias, which this type can represent.
inline Memory floats(Draw& draw, int64_t count, Element element) {
  Memory made = floats(draw, count);
  if (element == Element::kBfloat16)
    for (int64_t i = 0; i < count; ++i) made.floats()[i] = widened(rounded(made.floats()[i]));
  return made;
}

/// An image in channels_last, of which only some channels may be read, or laid out anyhow.
inline Shape image(Draw& draw, const std::vector<int64_t>& sizes, Element element, bool may_lie_anyhow) {
  const auto as = [&](int64_t channels) {
    return kernels::channels_last(sizes[0], channels, sizes[2], sizes[3], element);
  };
  Shape made = as(sizes[1]);
  if (may_lie_anyhow && draw.once_in(2)) {
    made = kernels::contiguous({sizes[0], sizes[1], sizes[2], sizes[3]});
    if (draw.once_in(4))
      made.strides[3] *= 2, made.strides[2] *= 2, made.strides[1] *= 2, made.strides[0] *= 2;
  } else if (draw.once_in(3)) {
    made = as(sizes[1] + draw.between(1, 5));
  }
  made.sizes[1] = sizes[1];
  made.element = element;
  return made;
}

}  // namespace rlopt::fuzz
