// Attention: softmax(q k^T * scale + mask) v of each head, in blocks of queries. Of bfloat16 weights are
// rounded to it before they are multiplied by values, as ATen does it; all else is float32.
//
// A block's scores stay in a core's caches from the first product to the second, so no matrix of all of them
// is written; as in Rabe and Staats 2021 (arXiv:2112.05682), but whole rows, as they fit.
#pragma once

#include <optional>

#include "kernels/shapes.h"

namespace rlopt::kernels {

/// Strides are in elements. What follows on each other are the numbers of a row.
struct AttentionOperand {
  const void* data;
  int64_t of_batch, of_head, of_row;
};

struct Attention {
  int64_t batches, heads, key_heads;  // as many queries' heads to each head of keys and values
  int64_t queries, keys, size, value_size;
  AttentionOperand q, k, v;
  AttentionOperand mask;   // added to scores; data is null where there is none
  int64_t of_mask_column;  // 1, or 0 where all keys have the same
  void* out;
  int64_t of_out_head, of_out_row;  // strides of the result; its batches follow on each other
  bool is_causal;                   // a query sees the keys up to its own place
  float scale;
  Element element;
};

/// Queries that are computed at a time.
constexpr int64_t kAttentionRows = 28;

/// How a thread's scratch is shared out, in floats, from where a cache line begins: scores of some queries,
/// packed keys, and packed values.
struct AttentionScratch {
  int64_t stride;  // from a row of scores to the next: all keys, in whole vectors
  int64_t steps;   // over all keys
  int64_t keys, values, size;

  AttentionScratch(int64_t num_keys, int64_t head, int64_t value_size, Element element, int64_t vector)
      : stride((num_keys + vector - 1) / vector * vector),
        steps((num_keys + terms_of(element) - 1) / terms_of(element)),
        keys(kAttentionRows * stride),
        values(keys + stride * (head / terms_of(element))),
        size(values + steps * ((value_size + vector - 1) / vector * vector) + kSlack) {}

 private:
  static constexpr int64_t kSlack = 16;  // up to where a cache line begins
};

/// Whether the kernel is quicker than ATen's for a head of such sizes: keys and values are packed first,
/// which takes as long as what is computed with them for some dozens of queries. With AVX2 there is none. Of
/// bfloat16 the size of a head has to be even.
bool takes_attention(int64_t queries, int64_t keys, int64_t size, int64_t value_size, Element element);

struct AttentionCall {
  Attention given;
  Shape result;  // [batch, head, query, value]
};

/// Nothing where the operands do not lie as they are read, or `takes_attention` says no. Throws
/// std::invalid_argument where they do not fit together.
///
/// `q` [batch, heads, queries, size], `k` [batch, key heads, keys, size], `v` [batch, key heads, keys, value
/// size]. The result lies so too, or, where it is not by heads, as [batch, queries, heads, value size].
/// `mask`, which may be null, as [batch, heads, queries, keys] or with ones in place of these.
std::optional<AttentionCall> attention_of(const Shape& q, const Shape& k, const Shape& v, const Shape* mask,
                                          bool is_causal, float scale, bool is_by_heads);

/// All of it, in threads of the OpenMP that is loaded. Throws std::bad_alloc.
void attend(const Attention& given, int num_threads);

}  // namespace rlopt::kernels
