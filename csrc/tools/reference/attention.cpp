// Reference: attention.
#include <cmath>

#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// An operand as [batch, heads, length, size], whether given so or as [batch, length, heads * size].
struct HeadsView {
  Sizes dims;
  Sizes strides;

  HeadsView(const Sizes& given, int64_t heads) : dims(given), strides(row_major_strides(given)) {
    if (given.size() == 4) return;
    const int64_t size = given[2] / heads;
    dims = {given[0], heads, given[1], size};
    strides = {given[1] * given[2], size, given[2], 1};
  }
  int64_t at(int64_t n, int64_t h, int64_t i) const {
    return n * strides[0] + h * strides[1] + i * strides[2];
  }
};

/// Scores of one query against all keys, masked, then softmax.
template <class A>
class ScoreRow {
 public:
  using T = typename A::T;

  ScoreRow(const Call& call, int64_t head_size)
      : call_(call), is_causal_(call.node.attr_int("is_causal") != 0) {
    const double given = call.node.attr_float("scale");
    // Compute the default as the decomposed operators do, so that both give the same field element.
    scale_ = A::from_double(given == 0 ? 1.0 / std::sqrt(static_cast<double>(head_size)) : given);
    const double cap = call.node.attr_float("softcap");
    has_cap_ = cap > 0;
    if (has_cap_) cap_ = A::from_double(cap);
  }

  T score(T product) const {
    const T scaled = A::mul(product, scale_);
    return has_cap_ ? A::mul(A::tanh(A::div(scaled, cap_)), cap_) : scaled;
  }

  /// Score of query `q` and key `k`; `at` is the position in the mask.
  T masked(T score, int64_t q, int64_t k, int64_t at) const {
    if (is_causal_ && k > q) return A::lowest();
    if (!call_.has(3)) return score;
    if (call_.in_dtypes[3] == DType::boolean) return call_.in[3]->ints[at] != 0 ? score : A::lowest();
    return A::add(score, call_.operand<T>(3)[at]);
  }

 private:
  const Call& call_;
  bool is_causal_;
  bool has_cap_ = false;
  T scale_{};
  T cap_{};
};

template <class A>
void attention(const Call& call) {
  using T = typename A::T;
  const HeadsView q(call.in[0]->dims, call.node.attr_int("q_num_heads"));
  const HeadsView k(call.in[1]->dims, call.node.attr_int("kv_num_heads"));
  const HeadsView v(call.in[2]->dims, call.node.attr_int("kv_num_heads"));
  const HeadsView out(call.out[0].dims, q.dims[1]);
  const int64_t keys = k.dims[2];
  const int64_t heads_per_key = k.dims[1] == 0 ? 1 : q.dims[1] / k.dims[1];
  const ScoreRow<A> row(call, q.dims[3]);
  const Sizes scores_dims{q.dims[0], q.dims[1], q.dims[2], keys};
  const Sizes mask = call.has(3) ? broadcast_strides(call.in[3]->dims, scores_dims) : Sizes(4, 0);
  const T *query = call.operand<T>(0).data(), *key = call.operand<T>(1).data(),
          *value = call.operand<T>(2).data();
  auto& result = call.result<T>();
  std::vector<T> scores(static_cast<size_t>(keys));
  const auto attend = [&](int64_t index, const std::array<int64_t, 1>& mask_at) {
    const int64_t i = index % q.dims[2], h = index / q.dims[2] % q.dims[1], n = index / q.dims[2] / q.dims[1];
    for (int64_t j = 0; j < keys; ++j) {
      typename A::Accumulator sum{};
      const T *x = query + q.at(n, h, i), *y = key + k.at(n, h / heads_per_key, j);
      for (int64_t d = 0; d < q.dims[3]; ++d) A::accumulate(sum, x[d], y[d]);
      scores[j] = row.masked(row.score(A::finish(sum)), i, j, mask_at[0] + j * mask[3]);
    }
    softmax_row<A>(scores.data(), keys, 1, true);
    for (int64_t d = 0; d < v.dims[3]; ++d) {
      typename A::Accumulator sum{};
      for (int64_t j = 0; j < keys; ++j)
        A::accumulate(sum, scores[j], value[v.at(n, h / heads_per_key, j) + d]);
      result[out.at(n, h, i) + d] = A::finish(sum);
    }
  };
  for_each_index<1>({q.dims[0], q.dims[1], q.dims[2]}, {Sizes{mask[0], mask[1], mask[2]}}, attend);
}

}  // namespace

template <class A>
std::vector<KernelRow> attention_rows() {
  return {{Op::Attention, attention<A>}};
}

RLOPT_INSTANTIATE(attention_rows)

}  // namespace rlopt
