#include "kernels/convolution.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "kernels/int8.h"
#include "kernels/job.h"
#include "kernels/matrix_unit.h"
#include "kernels/openmp.h"
#include "kernels/winograd.h"

namespace rlopt::kernels {

namespace {

alignas(64) const float zeros[kMaxChannels] = {};

/// Minimum multiplications per thread: below, waking it takes longer than its part.
constexpr double kLeastOfThread = 5e4;

/// Minimum multiplications of a part of a share, some 10 us: threads steal work part by part.
constexpr double kLeastOfPart = 5e5;
constexpr int kMostParts = 8;

/// Minimum pixels of a panel in a part of a dense convolution (or all pixels): each part reads the panel's
/// weights.
constexpr int64_t kPixelsOfPart = 96;

}  // namespace

const char* instructions() {
  const Kernels* const found = kernels(Element::kFloat32);
  return found == nullptr ? "" : found->name;
}

bool has_matrix_unit() {
  return kernels(Element::kFloat32) != nullptr && kernels(Element::kFloat32)->in_unit != nullptr;
}

bool has_kernels(Element element) { return kernels(element) != nullptr && has_openmp(); }

bool is_by_lanes(int64_t out_channels, int64_t in_channels, int64_t groups) {
  const Kernels* const found = kernels(Element::kFloat32);
  const int64_t channels = in_channels / groups;
  return found != nullptr && groups > 1 && out_channels == in_channels && channels > 0 &&
         found->vector_size % channels == 0;
}

bool takes_groups(int64_t out_channels, int64_t in_channels, int64_t groups, Element element) {
  if (kernels(element) == nullptr || groups < 1 || out_channels % groups != 0 || in_channels % groups != 0)
    return false;
  if (groups == 1) return true;
  if (is_by_lanes(out_channels, in_channels, groups)) return out_channels >= kLeastChannels;
  // With one vector of outputs, computing the pixels' addresses takes too long: oneDNN is faster there.
  return out_channels / groups > kernels(element)->vector_size;
}

namespace {

/// For one group.
int64_t dense_size(int64_t outputs, int64_t inputs, int64_t num_taps, Element element) {
  const Kernels& ours = *kernels(element);
  return Panels(outputs, ours.vector_size, ours.widest_panel)
      .packed_size(num_steps(num_taps, inputs, element), ours.vector_size);
}

/// For all groups: [out], then [tap, in, out], or [tap, pair, out, in of the pair].
void pack_by_lanes(const float* weight, const float* bias, const WeightLayout& layout, float* packed) {
  const int64_t outputs = layout.out_channels, inputs = layout.in_channels / layout.groups;
  const int64_t of_term = inputs_of_term(layout), terms = inputs / of_term, num_taps = layout.num_taps();
  if (bias != nullptr) std::memcpy(packed, bias, static_cast<size_t>(outputs) * sizeof(float));
  float* const to = packed + outputs;
  for (int64_t out = 0; out < outputs; ++out)
    for (int64_t in = 0; in < inputs; ++in)
      for (int64_t tap = 0; tap < num_taps; ++tap)
        write_number(weight[(out * inputs + in) * num_taps + tap],
                     of_term == 1 ? Element::kFloat32 : layout.element, to,
                     ((tap * terms + in / of_term) * outputs + out) * of_term + in % of_term);
}

/// For a depthwise weight: [out], then [pair of rows, column, out, row of the pair].
void pack_paired_rows(const float* weight, const float* bias, const WeightLayout& layout, float* packed) {
  const int64_t outputs = layout.out_channels, height = layout.kernel_height, width = layout.kernel_width;
  if (bias != nullptr) std::memcpy(packed, bias, static_cast<size_t>(outputs) * sizeof(float));
  float* const to = packed + outputs;
  for (int64_t out = 0; out < outputs; ++out)
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x)
        write_number(weight[(out * height + y) * width + x], layout.element, to,
                     2 * ((y / 2 * width + x) * outputs + out) + y % 2);
}

/// For all groups, each a bias and a weight in panels: [tap, in, out of the panel], or [tap, pair of ins,
/// out, in of the pair]. Cache blocking: some panels at a time and a few inputs at a time, so that cache
/// lines that outputs share stay cached until all of them have been written. Each panel is zeroed right
/// before, in the thread that writes it: pages are placed at first touch.
template <int64_t kTerms>
void pack_dense(const float* weight, const float* bias, const WeightLayout& layout, int64_t size,
                int num_threads, float* packed) {
  constexpr int64_t kInputs = 16;
  const Kernels& ours = *kernels(layout.element);
  const int64_t out_channels = layout.out_channels / layout.groups,
                in_channels = layout.in_channels / layout.groups, num_taps = layout.num_taps();
  const Panels panels(out_channels, ours.vector_size, ours.widest_panel);
  const int64_t steps = num_steps(1, in_channels, layout.element),
                columns = panels.vectors * ours.vector_size;
  for (int64_t group = 0; group < layout.groups; ++group) {
    std::fill_n(packed + group * size, columns, 0.0F);
    if (bias != nullptr) std::copy_n(bias + group * out_channels, out_channels, packed + group * size);
  }
  for_each_piece(layout.groups * panels.count, num_threads, [&](int64_t piece) {
    const int64_t group = piece / panels.count, panel = piece % panels.count;
    const int64_t width = panels.width(panel) * ours.vector_size,
                  begin = panels.begin(panel) * ours.vector_size, end = std::min(begin + width, out_channels);
    float* const to = packed + group * size + columns + begin * num_taps * steps;
    std::fill_n(to, width * num_taps * steps, 0.0F);
    for (int64_t first = 0; first < in_channels; first += kInputs) {
      const int64_t last = std::min(first + kInputs, in_channels);
      for (int64_t out = begin; out < end; ++out) {
        const float* from = weight + ((group * out_channels + out) * in_channels + first) * num_taps;
        // The processor does not foresee reads of as many rows as a panel is wide, some bytes of each.
        __builtin_prefetch(from + kInputs * num_taps);
        for (int64_t in = first; in < last; ++in)
          for (int64_t tap = 0; tap < num_taps; ++tap, ++from)
            write_number(*from, kTerms == 1 ? Element::kFloat32 : layout.element, to,
                         ((tap * steps + in / kTerms) * width + out - begin) * kTerms + in % kTerms);
      }
    }
  });
}

/// Asks for large pages for a large weight: in a virtual machine the faults of small ones take longer than
/// packing does. Only whole large pages, so that no others than those of the weight become large.
void use_large_pages([[maybe_unused]] float* packed, [[maybe_unused]] int64_t floats) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kLargePage = uintptr_t{1} << 21;
  const auto begin = (reinterpret_cast<uintptr_t>(packed) + kLargePage - 1) / kLargePage * kLargePage;
  const auto end = reinterpret_cast<uintptr_t>(packed + floats) / kLargePage * kLargePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace

size_t packed_size(const WeightLayout& layout) {
  const int64_t outputs = layout.out_channels, inputs = layout.in_channels, groups = layout.groups;
  const int64_t num_taps = layout.num_taps();
  const Method method = layout.method;
  if (!takes_groups(outputs, inputs, groups, layout.element))
    throw std::invalid_argument("no such groups of channels");
  if (has_tiles(method) && !(num_taps == 9 && groups == 1 && inputs >= kFewChannels))
    throw std::invalid_argument("no such tiles");
  if (parts_of(method) > 0) {
    check_unit(method, groups, inputs, layout.element);
    return static_cast<size_t>(unit_size(layout));
  }
  if (method == Method::kInt8) {
    check_int8(groups, inputs, layout.element);
    return static_cast<size_t>(int8_size(layout));
  }
  if (is_by_lanes(outputs, inputs, groups)) return static_cast<size_t>(outputs * (1 + rows_by_lanes(layout)));
  return static_cast<size_t>(groups *
                                 dense_size(outputs / groups, inputs / groups, num_taps, layout.element) +
                             winograd_size(outputs, inputs, method, layout.element));
}

void pack(const float* weight, const float* bias, const WeightLayout& layout, int num_threads,
          float* packed) {
  const auto floats = static_cast<int64_t>(packed_size(layout));
  const int64_t groups = layout.groups, num_taps = layout.num_taps();
  const int64_t inputs = layout.in_channels / groups, outputs = layout.out_channels / groups;
  use_large_pages(packed, floats);
  const bool is_dense = !has_paired_rows(layout) &&
                        !is_by_lanes(layout.out_channels, layout.in_channels, groups) &&
                        parts_of(layout.method) == 0 && layout.method != Method::kInt8;
  const int64_t size = is_dense ? dense_size(outputs, inputs, num_taps, layout.element) : 0;
  // Zeroes what no number is written to, in the threads that write later.
  constexpr int64_t kZeros = 1 << 16;
  const int64_t rest = floats - groups * size;
  for_each_piece((rest + kZeros - 1) / kZeros, num_threads, [&](int64_t piece) {
    std::fill_n(packed + groups * size + piece * kZeros, std::min(kZeros, rest - piece * kZeros), 0.0F);
  });
  if (has_paired_rows(layout)) return pack_paired_rows(weight, bias, layout, packed);
  if (parts_of(layout.method) > 0) return pack_for_unit(weight, bias, layout, num_threads, packed);
  if (layout.method == Method::kInt8) return pack_int8(weight, bias, layout, num_threads, packed);
  if (!is_dense) return pack_by_lanes(weight, bias, layout, packed);
  if (has_tiles(layout.method))
    pack_winograd(weight, outputs, inputs, layout.method, layout.element, num_threads, packed + size);
  const auto pack_panels = terms_of(layout.element) == 1 ? pack_dense<1> : pack_dense<2>;
  pack_panels(weight, bias, layout, size, num_threads, packed);
}

void share_out(Work& work, double multiplications, int num_threads) {
  if (work.time == 0) work.time = multiplications;
  const double most = multiplications / kLeastOfThread;
  work.num_threads = most < num_threads ? std::max(1, static_cast<int>(most)) : num_threads;
  if (work.num_threads == 1) return;
  const double parts = multiplications / (kLeastOfPart * work.num_threads);
  work.parts_of_thread = static_cast<int>(std::clamp<double>(parts, 1, kMostParts));
}

namespace {

double outputs_of(const Convolution& given, int64_t channels) {
  return static_cast<double>(given.images * given.out_height * given.out_width * channels);
}

/// In multiplications of the direct method, including the reading of the weights.
double time_of_sums(const Convolution& given) {
  const auto pixels = static_cast<double>(given.images * given.out_height * given.out_width);
  return (pixels + kReadOfWeight) * static_cast<double>(num_steps(given) * given.out_channels);
}

/// If each output pixel reads one pixel, and all of them lie in one row: the images as one image.
Convolution of_one_row(const Convolution& given) {
  const bool is_pixel = given.num_taps() == 1 && given.pad_y == 0 && given.pad_x == 0;
  // If the image is padded with zeros, it may have as many windows as pixels, but strides between them.
  const bool are_all = given.height == given.out_height && given.width == given.out_width &&
                       (given.height == 1 || given.stride_y == 1) &&
                       (given.width == 1 || given.stride_x == 1);
  if (!is_pixel || !are_all || is_by_lanes(given)) return given;
  Convolution row = given;
  int64_t pixels = 1, stride = 0;  // collapsed so far; axes from the innermost
  for (const auto& [size, step] :
       {std::pair(given.width, given.pixel_stride), std::pair(given.height, given.row_stride),
        std::pair(given.images, given.image_stride)}) {
    if (size == 1) continue;
    if (pixels > 1 && step != pixels * stride) return given;
    if (pixels == 1) stride = step;
    pixels *= size;
  }
  row.images = row.height = row.out_height = 1;
  row.width = row.out_width = pixels;
  row.pixel_stride = stride;
  row.stride_x = row.stride_y = 1;
  return row;
}

}  // namespace

bool rounds_input(const Convolution& given) {
  if (given.method == Method::kBf16) return true;
  if (given.element != Element::kBfloat16 || given.method != Method::kSums) return false;
  if (takes_any_strides(given)) return true;
  const Convolution row = of_one_row(given);
  return row.groups == 1 && row.num_taps() == 1 && row.images == 1 && row.out_height == 1 &&
         row.width == row.out_width && row.pad_x == 0 && row.pad_y == 0 && row.height > 0 &&
         (row.width == 1 || row.stride_x == 1);
}

bool Work::is_empty() const { return outputs_of(given, given.out_channels) == 0; }

Work convolution_work(const Convolution& given, int num_threads) {
  if (has_tiles(given.method)) return winograd_work(given, num_threads);
  if (parts_of(given.method) > 0) return unit_work(of_one_row(given), num_threads);
  if (given.method == Method::kInt8) return int8_work(of_one_row(given), num_threads);
  const Kernels& ours =
      *(is_by_lanes(given) ? kernels_of(given.element, given.out_channels) : kernels(given.element));
  const double outputs = outputs_of(given, given.out_channels);
  Work work;
  work.given = of_one_row(given);
  const int64_t terms = given.num_taps() * given.channels / given.groups;  // per output
  if (is_by_lanes(given)) {
    work.kernel = ours.depthwise;  // memory-bound
    share_out(work, outputs * static_cast<double>(terms) * 4.0, num_threads);
    return work;
  }
  work.kernel = ours.dense;
  work.weights = static_cast<double>(num_steps(given) * given.out_channels);
  work.time = time_of_sums(given) - kReadOfWeight * work.weights;
  share_out(work, outputs * static_cast<double>(num_steps(given)), num_threads);
  const int64_t pieces = given.images *
                         Panels(given.out_channels, ours.vector_size, ours.widest_panel).count *
                         std::max<int64_t>(given.out_height * given.out_width / kPixelsOfPart, 1);
  const int64_t most = std::max<int64_t>(pieces / work.num_threads, 1);
  work.parts_of_thread = static_cast<int>(std::min<int64_t>(work.parts_of_thread, most));
  if (takes_any_strides(given)) {
    work.kernel = ours.few_channels;
    work.scratch_of_thread = ours.few_channels_scratch(given);
  } else if (given.in_element != given.element) {
    // Some rows at a time, or all of them where threads share out channels, of which there are more, or rows
    // are few.
    constexpr int64_t kSlack = 16;  // for alignment to a cache line
    const int64_t few = (kLeastTiles + 1) * ours.unit * work.num_threads;
    const int64_t rows =
        std::min(work.given.out_width, std::max({most_rounded(given), given.out_channels, few}));
    work.scratch_of_thread = rows * num_steps(1, given.channels, given.element) + kSlack;
  }
  return work;
}

Work pool_work(const Convolution& given, Pool kind, int num_threads) {
  Work work;
  work.given = given;
  work.given.out_channels = given.channels;
  work.kernel = kernels_of(given.element, given.channels)->pool;
  work.pool = kind;
  const double outputs = outputs_of(given, given.channels);
  share_out(work, outputs * static_cast<double>(given.num_taps()) * 4.0, num_threads);
  return work;
}

namespace {

/// Memory-bound calls: cost of an element in multiplications, and of the exponential, if there is one.
constexpr double kWaitOfElement = 4.0, kExponential = 24.0;

Work of_elements(const Convolution& given, void (*kernel)(const Job&, int, int), int num_threads,
                 double time_of_element = kWaitOfElement) {
  Work work;
  work.given = given;
  work.kernel = kernel;
  share_out(work, outputs_of(given, given.channels) * time_of_element, num_threads);
  return work;
}

}  // namespace

Work pointwise_work(const Convolution& given, Pointwise kind, int num_threads) {
  const double time_of_element = kWaitOfElement + (is_dear(given.activation) ? kExponential : 0.0);
  Work work = of_elements(given, kernels(given.element)->pointwise, num_threads, time_of_element);
  work.pointwise = kind;
  return work;
}

Work shuffle_work(const Convolution& given, int num_threads) {
  return of_elements(given, kernels(given.element)->shuffle, num_threads);
}

void run_share(const Work& work, const Operands& operands, int thread, int count, Turn* turns) {
  const int parts = count > 1 ? work.parts_of_thread : 1;
  float* const scratch = operands.scratch + thread * work.scratch_of_thread;
  bool is_prepared = false;
  const Job job{&work.given, operands.in,      operands.packed, operands.other, operands.out,
                zeros,       work.pool,        work.pointwise,  scratch,        work.tiles_of_block,
                parts,       work.num_threads, &is_prepared};
  if (parts == 1) return work.kernel(job, thread, count);
  for (int i = 0; i < count; ++i) {
    const int owner = (thread + i) % count;
    for (;;) {
      const int part = turns[owner].next.fetch_add(1, std::memory_order_relaxed);
      if (part >= parts) break;
      work.kernel(job, owner * parts + part, count * parts);
    }
  }
}

Method method_of(int64_t number) {
  const auto method = static_cast<Method>(number);
  if (number != static_cast<int>(method) ||
      !(method == Method::kSums || parts_of(method) > 0 || method == Method::kInt8 || has_tiles(method)))
    throw std::invalid_argument("no such method");
  return method;
}

namespace {

/// A method is taken only if it is this much faster than the ones that need less memory: processors differ.
constexpr double kClearly = 0.95;

}  // namespace

Method best_method(const Convolution& given, int num_threads, bool may_split) {
  Method best = Method::kSums;
  if (kernels(given.element) == nullptr || given.groups != 1) return best;
  double least = time_of_sums(given);
  const auto consider = [&](Method method, double time) {
    if (time >= kClearly * least) return;
    least = time;
    best = method;
  };
  for (const Method in_unit : {Method::kBf16, Method::kBf16x3, Method::kBf16x2}) {
    if (!takes_unit(in_unit, 1, given.channels, given.element)) continue;
    if (in_unit == Method::kBf16x2 && !may_split) continue;
    Convolution there = given;
    there.method = in_unit;
    consider(in_unit, time_in_unit(there, num_threads));
  }
  if (can_have_tiles(given))
    for (const Method method : {Method::kTiles2, Method::kTiles4})
      consider(method, time_of_tiles(given, static_cast<int64_t>(method)));
  return best;
}

bool is_finite(const float* from, int64_t count) {
  return kernels(Element::kFloat32)->is_finite(from, count);
}

void run(const Work& work, Operands operands) {
  if (work.is_empty()) return;
  const int64_t size = work.scratch_of_thread * work.num_threads;
  const std::unique_ptr<float[]> scratch(size > 0 ? new float[static_cast<size_t>(size)] : nullptr);
  operands.scratch = scratch.get();
  const auto turns = std::make_unique<Turn[]>(static_cast<size_t>(work.num_threads));
  in_parallel(work.num_threads,
              [&](int thread, int count) { run_share(work, operands, thread, count, turns.get()); });
}

}  // namespace rlopt::kernels
