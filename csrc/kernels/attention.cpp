#include "kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "kernels/job.h"
#include "kernels/openmp.h"

namespace rlopt::kernels {

namespace {

/// Floats of a thread's scratch, 4 MB. With more, each block would read keys and values from memory.
constexpr int64_t kMostAttentionScratch = 1 << 20;

/// Minimum multiplications per thread. A thread's work is split into units of an eighth of its total.
constexpr double kLeastOfThread = 5e4;
constexpr int64_t kUnitsOfThread = 8;

/// Whether the numbers of a row are contiguous.
bool has_rows(const Shape& shape) { return shape.is_empty() || shape.sizes[3] == 1 || shape.strides[3] == 1; }

AttentionOperand operand(const Shape& shape) {
  return {nullptr, shape.strides[0], shape.strides[1], shape.strides[2]};
}

/// Floats of scratch per thread.
int64_t scratch_of_thread(int64_t keys, int64_t size, int64_t value_size, Element element) {
  return AttentionScratch(keys, size, value_size, element, kernels(element)->vector_size).size;
}

int64_t num_blocks(const Attention& given) {
  const int64_t rows = attends_in_unit(given.element) ? kMostAttentionRows : kAttentionRows;
  return (given.queries + rows - 1) / rows;
}

}  // namespace

bool attends_in_unit(Element element) {
  return element == Element::kBfloat16 && kernels(element) != nullptr && kernels(element)->in_unit != nullptr;
}

bool takes_attention(int64_t queries, int64_t keys, int64_t size, int64_t value_size, Element element) {
  constexpr int64_t kManyQueries = 64, kFewQueries = 8;
  const Kernels* const ours = kernels(element);
  return ours != nullptr && ours->attention != nullptr && size > 0 && size % terms_of(element) == 0 &&
         queries >= kFewQueries && (queries >= kManyQueries || 2 * queries >= keys) &&
         scratch_of_thread(keys, size, value_size, element) <= kMostAttentionScratch;
}

std::optional<AttentionCall> attention_of(const Shape& q, const Shape& k, const Shape& v, const Shape* mask,
                                          bool is_causal, float scale, bool is_by_heads) {
  if (q.rank != 4 || k.rank != 4 || v.rank != 4 || (mask != nullptr && mask->rank > 4)) return std::nullopt;
  AttentionCall call{};
  Attention& given = call.given;
  given.batches = q.sizes[0], given.heads = q.sizes[1], given.queries = q.sizes[2], given.size = q.sizes[3];
  given.key_heads = k.sizes[1], given.keys = k.sizes[2], given.value_size = v.sizes[3];
  if (k.sizes[0] != given.batches || v.sizes[0] != given.batches || v.sizes[1] != given.key_heads ||
      v.sizes[2] != given.keys || k.sizes[3] != given.size || given.key_heads < 1 ||
      given.heads % given.key_heads != 0)
    throw std::invalid_argument("queries, keys and values do not fit together");
  if (q.is_empty() || k.is_empty() || v.is_empty() ||
      !takes_attention(given.queries, given.keys, given.size, given.value_size, q.element))
    return std::nullopt;
  if (!has_rows(q) || !has_rows(k) || !has_rows(v)) return std::nullopt;
  given.q = operand(q), given.k = operand(k), given.v = operand(v);
  given.is_causal = is_causal;
  given.scale = scale;
  given.element = q.element;
  if (mask != nullptr) {
    const int64_t wanted[] = {given.batches, given.heads, given.queries, given.keys};
    int64_t strides[4] = {};
    for (size_t i = 0; i < mask->rank; ++i) {
      const size_t axis = 4 - mask->rank + i;
      if (mask->sizes[i] != wanted[axis] && mask->sizes[i] != 1)
        throw std::invalid_argument("the mask does not fit the scores");
      strides[axis] = mask->sizes[i] == 1 ? 0 : mask->strides[i];
    }
    if (strides[3] != 0 && strides[3] != 1) return std::nullopt;
    given.mask = {nullptr, strides[0], strides[1], strides[2]};
    given.of_mask_column = strides[3];
  }
  call.result.rank = 4;
  call.result.element = q.element;
  call.result.sizes = {given.batches, given.heads, given.queries, given.value_size};
  given.of_out_head = is_by_heads ? given.queries * given.value_size : given.value_size;
  given.of_out_row = is_by_heads ? given.value_size : given.heads * given.value_size;
  call.result.strides = {given.heads * given.queries * given.value_size, given.of_out_head, given.of_out_row,
                         1};
  return call;
}

void attend(const Attention& given, int num_threads) {
  const double multiplications =
      static_cast<double>(given.batches * given.heads * given.queries * given.keys) *
      static_cast<double>(given.size + given.value_size);
  const double most = multiplications / kLeastOfThread;
  const int wanted = most < num_threads ? std::max(1, static_cast<int>(most)) : num_threads;
  const int64_t heads = given.batches * given.heads;
  const int64_t parts =
      wanted == 1 ? 1
                  : std::clamp<int64_t>((kUnitsOfThread * wanted + heads - 1) / heads, 1, num_blocks(given));
  const int threads = static_cast<int>(std::min<int64_t>(wanted, heads * parts));
  const AttentionUnits units{heads, parts, num_blocks(given)};
  const int64_t size = scratch_of_thread(given.keys, given.size, given.value_size, given.element);
  const std::unique_ptr<float[]> scratch(new float[static_cast<size_t>(size * threads)]);
  std::atomic<int64_t> next{0};
  in_parallel(threads, [&](int thread, int) {
    kernels(given.element)->attention(given, units, next, scratch.get() + thread * size);
  });
}

}  // namespace rlopt::kernels
