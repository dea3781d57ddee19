// Attention: softmax(q k^T * scale + mask) v of each head, in blocks of queries. For bfloat16 the weights are
// rounded to bfloat16 before they are multiplied by the values, as in ATen; everything else is float32.
//
// A block's scores stay in a core's caches from the first product to the second, so the full score matrix is
// never written. This follows Rabe and Staats 2021 (arXiv:2112.05682), but with whole rows, since they fit.
#pragma once

#include <algorithm>
#include <optional>

#include "kernels/shapes.h"

namespace rlopt::kernels {

/// Strides are in elements. The numbers of a row are contiguous.
struct AttentionOperand {
  const void* data;
  int64_t of_batch, of_head, of_row;
};

struct Attention {
  int64_t batches, heads, key_heads;  // the number of query heads is a multiple of the number of key heads
  int64_t queries, keys, size, value_size;
  AttentionOperand q, k, v;
  AttentionOperand mask;   // added to the scores; data is null if there is no mask
  int64_t of_mask_column;  // 1, or 0 if all keys share one number
  void* out;
  int64_t of_out_head, of_out_row;  // strides of the result; its batches are contiguous
  bool is_causal;                   // a query sees only the keys up to its own position
  float scale;
  Element element;
};

/// Most queries per block, with and without a matrix unit.
constexpr int64_t kMostAttentionRows = 32, kAttentionRows = 28;

/// Whether a matrix unit multiplies: bfloat16 where there is one.
bool attends_in_unit(Element element);

/// Layout of a thread's scratch, in floats from the start of a cache line: scores of some queries, packed
/// keys, packed values, and, for a matrix unit, these queries and some results.
struct AttentionScratch {
  int64_t rows;        // most queries per block
  int64_t terms;       // that a sum is rounded up to: those of an instruction
  int64_t stride;      // between rows of scores: all keys, rounded up
  int64_t head_steps;  // over the numbers of a key
  int64_t steps;       // over all keys
  int64_t keys, values, queries, results, size;

  AttentionScratch(int64_t num_keys, int64_t head, int64_t value_size, Element element, int64_t vector)
      : rows(attends_in_unit(element) ? kMostAttentionRows : kAttentionRows),
        terms(attends_in_unit(element) ? kTermsInUnit : terms_of(element)),
        stride(up_to(num_keys, std::max(vector, attends_in_unit(element) ? terms : 1))),
        head_steps(up_to(head, terms) / terms_of(element)),
        steps(up_to(num_keys, terms) / terms_of(element)),
        keys(rows * stride),
        values(keys + stride * head_steps),
        queries(values + steps * up_to(value_size, vector)),
        results(queries + (attends_in_unit(element) ? rows * head_steps : 0)),
        size(results + (attends_in_unit(element) ? rows * kTermsInUnit : 0) + kSlack) {}

  static constexpr int64_t up_to(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

 private:
  static constexpr int64_t kTermsInUnit = 32;
  static constexpr int64_t kSlack = 16;  // for alignment to a cache line
};

/// Whether the kernel is faster than ATen's for a head of these sizes. Keys and values are packed first,
/// which takes as long as computing some dozens of queries with them. There is no kernel for AVX2. For
/// bfloat16 the head size has to be even.
bool takes_attention(int64_t queries, int64_t keys, int64_t size, int64_t value_size, Element element);

struct AttentionCall {
  Attention given;
  Shape result;  // [batch, head, query, value]
};

/// Returns nothing if the operands' layout is not supported or `takes_attention` is false. Throws
/// std::invalid_argument if they do not fit together.
///
/// `q` [batch, heads, queries, size], `k` [batch, key heads, keys, size], `v` [batch, key heads, keys, value
/// size]. The result has the same layout or, unless `is_by_heads`, is laid out as [batch, queries, heads,
/// value size]. `mask`, which may be null, is [batch, heads, queries, keys]; any of these sizes may be one.
std::optional<AttentionCall> attention_of(const Shape& q, const Shape& k, const Shape& v, const Shape* mask,
                                          bool is_causal, float scale, bool is_by_heads);

/// Runs the whole call in the threads of the loaded OpenMP. Throws std::bad_alloc.
void attend(const Attention& given, int num_threads);

}  // namespace rlopt::kernels
