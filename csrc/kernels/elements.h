// Table of the element types of images. Sums and activations are always float32.
//
// docs/kernels.md lists what a new element type needs besides a row here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rlopt::kernels {

enum class Element : int {
  kFloat32 = 0,
  kBfloat16 = 1,
};

struct Bfloat16 {
  uint16_t bits;
};

struct ElementFacts {
  const char* name;  // as in PyTorch
  int64_t bytes;
  bool has_paired_rows;  // strips of depthwise convolutions multiply two kernel rows at once
};

/// In the order of the enumeration.
constexpr std::array<ElementFacts, 2> kElements{{
    {"float32", sizeof(float), false},
    {"bfloat16", sizeof(Bfloat16), true},
}};

constexpr const ElementFacts& facts_of(Element element) { return kElements[static_cast<size_t>(element)]; }

constexpr int64_t bytes_of(Element element) { return facts_of(element).bytes; }

/// Terms of a dense sum that one lane of a vector adds at a time: they take the space of one float32.
constexpr int64_t terms_of(Element element) {
  return static_cast<int64_t>(sizeof(float)) / bytes_of(element);
}

/// Rounds to nearest, ties to even; NaN stays NaN. Unlike in the kernels, numbers below 2^-126 are kept.
inline Bfloat16 rounded(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (value != value) return {0x7fc0};
  return {static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16)};
}

/// Writes `value` as element number `at` of `memory`.
inline void write_number(float value, Element element, float* memory, int64_t at) {
  switch (element) {
    case Element::kFloat32:
      memory[at] = value;
      return;
    case Element::kBfloat16: {
      const Bfloat16 number = rounded(value);
      std::memcpy(reinterpret_cast<char*>(memory) + at * bytes_of(element), &number, sizeof(number));
      return;
    }
  }
}

}  // namespace rlopt::kernels
