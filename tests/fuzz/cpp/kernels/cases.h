// What the cases share: how a call is run, compared and reported, and where windows lie.
#pragma once

#include <stdexcept>

#include "kernels/convolution.h"
#include "kernels/int8.h"
#include "kernels/job.h"
#include "kernels/matrix_unit.h"
#include "kernels/winograd.h"
#include "reference.h"

namespace rlopt::fuzz {

using namespace kernels;  // NOLINT: all of it is about them

/// What is being done, for a report; written before each call.
inline char current[1024];

inline void describe(const std::string& text) { std::snprintf(current, sizeof(current), "%s", text.c_str()); }

inline void report() {
  const size_t length = std::strlen(current);
  if (write(STDERR_FILENO, current, length) < 0 || write(STDERR_FILENO, "\n", 1) < 0) _exit(4);
}

inline void end_by_signal(int) {
  report();
  _exit(1);
}

[[noreturn]] inline void fail(const std::string& what) {
  report();
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

inline std::string text_of(const char* name, std::initializer_list<int64_t> numbers) {
  std::string text = std::string(" ") + name;
  for (const int64_t number : numbers) text += " " + std::to_string(number);
  return text;
}

struct Case {
  Draw& draw;
  Element element;
  std::string repeat;  // the command
  int num_threads;

  void begin(const std::string& what) const { describe(repeat + "\n" + what); }
};

/// Runs a call: by all threads at once, or by one after the other, each with scratch between closed pages.
inline void compute(Case& given, const Work& work, Operands operands) {
  if (work.is_empty()) return;
  if (given.draw.once_in(2)) return run(work, operands);
  std::vector<Turn> turns(static_cast<size_t>(work.num_threads));
  for (int thread = 0; thread < work.num_threads; ++thread) {
    const Memory scratch(static_cast<size_t>(work.scratch_of_thread) * sizeof(float), given.draw.once_in(2));
    // `run_share` goes to the place of this thread.
    operands.scratch = scratch.floats() - thread * work.scratch_of_thread;
    run_share(work, operands, thread, work.num_threads, turns.data());
  }
}

/// Fails unless the matrix unit's 8-bit integers have led to the results of the vector unit's.
inline void compare_units(Case& given, Work work, const Operands& operands, const Tensor& out) {
  const Kernels& ours = *kernels::kernels(work.given.element);
  if (ours.int8_in_unit == nullptr || work.kernel != ours.int8_in_unit) return;
  std::vector<double> found;
  for (int64_t i = 0; i < span_of(out.shape); ++i) found.push_back(out.at(i));
  work.kernel = ours.int8;
  compute(given, work, operands);
  for (int64_t i = 0; i < span_of(out.shape); ++i)
    if (const double before = found[static_cast<size_t>(i)]; out.at(i) != before && !std::isnan(before))
      fail("the matrix unit has another result" + text_of("at", {i}));
}

/// What rounding to bfloat16 may lose.
constexpr double kLostByHalf = 1.0 / 256;

/// What may be lost of the terms if these are rounded to the type, and this much otherwise.
inline double lost_by(Element element, double share) {
  return element == Element::kBfloat16 ? std::max(share, kLostByHalf) : share;
}

/// What quantising may add to a sum of this many terms: of an image's numbers, whose steps are as large as
/// the largest makes them, times `Draw::number`s. The standard deviation is 0.011 for each term of size one.
inline double quantised(Method method, const Tensor& image, int64_t terms) {
  if (method != Method::kInt8) return 0;
  double most = 4;
  for (int64_t i = 0; i < span_of(image.shape); ++i) most = std::max(most, std::abs(image.at(i)));
  return 0.04 * most * std::sqrt(static_cast<double>(terms));
}

/// Compares one number. `share` is what may be lost of the terms, `element` the type of the result, and
/// `more` is added.
inline void compare(double got, const Sum& expected, double share, Element element, const std::string& where,
                    double more = 0) {
  const double rounding = element == Element::kBfloat16 ? kLostByHalf * std::abs(expected.value) : 0;
  const double bound = share * expected.size + rounding + 1e-6 + more;
  if (got == expected.value || std::abs(got - expected.value) <= bound) return;
  fail(where + ": got " + std::to_string(got) + ", expected " + std::to_string(expected.value) + " within " +
       std::to_string(bound));
}

/// A result with room for it: whole, or some channels of a larger image, whose other channels must not
/// change.
struct Room {
  Tensor whole;
  int64_t first = 0;

  Room(Draw& draw, Call& call) : whole(empty(draw, call.result)) {
    if (call.result.rank != kImageRank || draw.once_in(2)) return;
    const auto& sizes = call.result.sizes;
    const int64_t channels = sizes[1] + draw.between(1, 9);
    whole = empty(draw, channels_last(sizes[0], channels, sizes[2], sizes[3], call.result.element));
    first = write_into(call, whole.shape, draw.between(0, channels - sizes[1]));
    for (int64_t i = 0; i < span_of(whole.shape); ++i) whole.put(i, 7);
  }
  void* begin() const { return whole.memory.data() + first * bytes_of(whole.shape.element); }
  double at(int64_t n, int64_t c, int64_t y, int64_t x) const { return whole.at(n, first + c, y, x); }

  void check_the_rest(int64_t channels) const {
    const auto& sizes = whole.shape.sizes;
    for (int64_t i = 0; i < span_of(whole.shape); ++i)
      if (const int64_t c = i % sizes[1]; (c < first || c >= first + channels) && whole.at(i) != 7)
        fail("a channel beside the result was written");
  }
};

/// The type of a result: usually what is multiplied, or read.
inline Element result_element(Draw& draw, Element element) {
  const Element other = element == Element::kFloat32 ? Element::kBfloat16 : Element::kFloat32;
  return draw.once_in(3) && kernels::kernels(other) != nullptr ? other : element;
}

/// The type of an operand of products: those of bfloat16 may read float32.
inline Element operand_element(Draw& draw, Element element) {
  return draw.once_in(3) ? Element::kFloat32 : element;
}

inline Epilogue epilogue(Draw& draw) {
  return {static_cast<Activation>(draw.between(0, kNumActivations - 1)), -0.5F, 0.7F};
}

template <class Each>
inline void for_each_place(const Shape& shape, const Each& each) {
  for (int64_t n = 0; n < shape.sizes[0]; ++n)
    for (int64_t c = 0; c < shape.sizes[1]; ++c)
      for (int64_t y = 0; y < shape.sizes[2]; ++y)
        for (int64_t x = 0; x < shape.sizes[3]; ++x) each(n, c, y, x, text_of("at", {n, c, y, x}));
}

/// What a case is about: sizes for one of the kernels.
struct Geometry {
  Window window{};
  int64_t images = 1, channels = 8, height = 1, width = 1, groups = 1;
  Method method = Method::kSums;

  std::string text() const {
    const Window& w = window;
    return text_of("image", {images, channels, height, width}) + text_of("outputs", {w.out_channels}) +
           text_of("groups", {groups}) + text_of("kernel", {w.kernel_height, w.kernel_width}) +
           text_of("stride", {w.stride_y, w.stride_x}) + text_of("dilation", {w.dilation_y, w.dilation_x}) +
           text_of("padding", {w.pad_y, w.pad_x, w.pad_below, w.pad_behind}) +
           text_of("method", {static_cast<int64_t>(method)});
  }
};

inline Geometry any_window(Draw& draw) {
  Geometry made;
  Window& window = made.window;
  made.images = draw.of({0, 1, 1, 2, 3});
  made.height = draw.of({1, 2, 3, 5, 7, 8, 12});
  made.width = draw.of({1, 2, 3, 5, 9, 12, 17, 33, 40});
  for (int64_t* const size : {&window.kernel_height, &window.kernel_width})
    *size = draw.of({1, 2, 3, 3, 4, 5, 7});
  for (int64_t* const size : {&window.stride_y, &window.stride_x}) *size = draw.of({1, 1, 2, 3, 4, 9});
  for (int64_t* const size : {&window.dilation_y, &window.dilation_x}) *size = draw.of({1, 1, 1, 2, 3});
  for (int64_t* const size : {&window.pad_y, &window.pad_x, &window.pad_below, &window.pad_behind})
    *size = draw.once_in(6) ? draw.between(-2, 6) : draw.between(0, 3);
  if (draw.once_in(40)) window.stride_x = kMostStep, window.pad_behind = kMostStep;
  return made;
}

}  // namespace rlopt::fuzz
