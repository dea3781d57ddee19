// Reference: convolutions and pools, with 1 to 3 spatial dims treated as 3.
#include <algorithm>

#include "tools/reference/functions.h"
#include "tools/reference/kernels.h"

namespace rlopt {

namespace {

/// One spatial axis; "wide" is the side with more positions (input of Conv and of a pool, output of
/// ConvTranspose): wide position = narrow position * stride + kernel position * dilation - pad.
struct Axis {
  int64_t wide = 1;
  int64_t narrow = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t pad = 0;
  int64_t pad_behind = 0;

  int64_t at(int64_t narrow_index, int64_t kernel_index) const {
    return narrow_index * stride + kernel_index * dilation - pad;
  }
  bool contains(int64_t wide_index) const { return wide_index >= 0 && wide_index < wide; }
  /// Taps of a window that lie inside the tensor or its padding.
  int64_t num_padded(int64_t narrow_index) const {
    int64_t number = 0;
    for (int64_t k = 0; k < kernel; ++k) number += at(narrow_index, k) < wide + pad_behind ? 1 : 0;
    return number;
  }
};
using Axes = std::array<Axis, 3>;

/// Missing leading axes stay trivial: size 1, kernel 1.
Axes make_axes(const Node& node, const Sizes& wide, const Sizes& narrow, const int64_t* kernel) {
  const size_t rank = wide.size() - 2;
  const Window window = make_window(node.info().name, rank, node.attr_ints("strides"), node.attr_ints("pads"),
                                    node.attr_ints("dilations"));
  Axes axes;
  for (size_t i = 0; i < rank; ++i) {
    axes[3 - rank + i] = {wide[i + 2],         narrow[i + 2],    kernel[i],     window.strides[i],
                          window.dilations[i], window.begins[i], window.ends[i]};
  }
  return axes;
}

/// Calls visit(kernel position, wide position) for every tap of the window at narrow position (i, j, k) that
/// lies inside the tensor.
template <class Visit>
void for_each_tap(const Axes& axes, int64_t i, int64_t j, int64_t k, Visit visit) {
  for (int64_t p = 0; p < axes[0].kernel; ++p) {
    const int64_t z = axes[0].at(i, p);
    if (!axes[0].contains(z)) continue;
    for (int64_t q = 0; q < axes[1].kernel; ++q) {
      const int64_t y = axes[1].at(j, q);
      if (!axes[1].contains(y)) continue;
      for (int64_t r = 0; r < axes[2].kernel; ++r) {
        const int64_t x = axes[2].at(k, r);
        if (!axes[2].contains(x)) continue;
        visit((p * axes[1].kernel + q) * axes[2].kernel + r, (z * axes[1].wide + y) * axes[2].wide + x);
      }
    }
  }
}

int64_t wide_size(const Axes& axes) { return axes[0].wide * axes[1].wide * axes[2].wide; }
int64_t narrow_size(const Axes& axes) { return axes[0].narrow * axes[1].narrow * axes[2].narrow; }
int64_t kernel_size(const Axes& axes) { return axes[0].kernel * axes[1].kernel * axes[2].kernel; }

template <class Visit>
void for_each_window(const Axes& axes, Visit visit) {
  int64_t position = 0;
  for (int64_t i = 0; i < axes[0].narrow; ++i) {
    for (int64_t j = 0; j < axes[1].narrow; ++j) {
      for (int64_t k = 0; k < axes[2].narrow; ++k) visit(position++, i, j, k);
    }
  }
}

template <class A>
void conv(const Call& call) {
  using T = typename A::T;
  const Sizes &x_dims = call.in[0]->dims, &w_dims = call.in[1]->dims;
  const Axes axes = make_axes(call.node, x_dims, call.out[0].dims, w_dims.data() + 2);
  const int64_t group_in = w_dims[1], group_out = w_dims[0] / call.node.attr_int("group");
  const T *x = call.operand<T>(0).data(), *w = call.operand<T>(1).data();
  const T* bias = call.has(2) ? call.operand<T>(2).data() : nullptr;
  auto& out = call.result<T>();
  T* y = out.data();
  for (int64_t n = 0; n < x_dims[0]; ++n) {
    for (int64_t m = 0; m < w_dims[0]; ++m, y += narrow_size(axes)) {
      const T* image = x + (n * x_dims[1] + m / group_out * group_in) * wide_size(axes);
      const T* kernel = w + m * group_in * kernel_size(axes);
      for_each_window(axes, [&](int64_t position, int64_t i, int64_t j, int64_t k) {
        typename A::Accumulator sum{};
        for_each_tap(axes, i, j, k, [&](int64_t tap, int64_t at) {
          for (int64_t c = 0; c < group_in; ++c) {
            A::accumulate(sum, image[c * wide_size(axes) + at], kernel[c * kernel_size(axes) + tap]);
          }
        });
        y[position] = bias == nullptr ? A::finish(sum) : A::add(A::finish(sum), bias[m]);
      });
    }
  }
  if (call.node.op == Op::FusedConv) {
    for (size_t i = 0; call.has(3) && i < out.size(); ++i) out[i] = A::add(out[i], call.operand<T>(3)[i]);
    activate<A>(call.node, out);
  }
}

template <class A>
void conv_transpose(const Call& call) {
  using T = typename A::T;
  const Sizes &x_dims = call.in[0]->dims, &w_dims = call.in[1]->dims, &y_dims = call.out[0].dims;
  const Axes axes = make_axes(call.node, y_dims, x_dims, w_dims.data() + 2);
  const int64_t group_out = w_dims[1], group_in = w_dims[0] / call.node.attr_int("group");
  auto& out = call.result<T>();
  const T *x = call.operand<T>(0).data(), *w = call.operand<T>(1).data();
  for (int64_t n = 0; n < x_dims[0]; ++n) {
    for (int64_t c = 0; c < x_dims[1]; ++c, x += narrow_size(axes)) {
      for (int64_t m = 0; m < group_out; ++m) {
        const T* kernel = w + (c * group_out + m) * kernel_size(axes);
        T* image = out.data() + (n * y_dims[1] + c / group_in * group_out + m) * wide_size(axes);
        for_each_window(axes, [&](int64_t position, int64_t i, int64_t j, int64_t k) {
          for_each_tap(axes, i, j, k, [&](int64_t tap, int64_t at) {
            image[at] = A::add(image[at], A::mul(x[position], kernel[tap]));
          });
        });
      }
    }
  }
  for (size_t i = 0; call.has(2) && i < out.size(); ++i)
    out[i] = A::add(out[i], call.operand<T>(2)[static_cast<int64_t>(i) / wide_size(axes) % y_dims[1]]);
}

/// Reduces the values of each window by reduce(values, number of its taps inside input and padding).
template <class A, class F>
void pool(const Call& call, F reduce) {
  using T = typename A::T;
  const Sizes& dims = call.in[0]->dims;
  const Axes axes = make_axes(call.node, dims, call.out[0].dims, call.node.attr_ints("kernel_shape").data());
  const T* x = call.operand<T>().data();
  T* y = call.result<T>().data();
  std::vector<T> values;
  for (int64_t image = 0; image < dims[0] * dims[1]; ++image, x += wide_size(axes), y += narrow_size(axes)) {
    for_each_window(axes, [&](int64_t position, int64_t i, int64_t j, int64_t k) {
      values.clear();
      for_each_tap(axes, i, j, k, [&](int64_t, int64_t at) { values.push_back(x[at]); });
      y[position] = reduce(values, axes[0].num_padded(i) * axes[1].num_padded(j) * axes[2].num_padded(k));
    });
  }
}

template <class A>
void max_pool(const Call& call) {
  using T = typename A::T;
  pool<A>(call, [](const std::vector<T>& values, int64_t) {
    T best = A::lowest();
    for (const T value : values) best = Functions<A>::max(best, value);
    return best;
  });
}

template <class A>
void average_pool(const Call& call) {
  using T = typename A::T;
  const bool with_padding = call.node.attr_int("count_include_pad") != 0;
  pool<A>(call, [with_padding](const std::vector<T>& values, int64_t padded) {
    T sum = A::from_int(0);
    for (const T value : values) sum = A::add(sum, value);
    return A::div(sum, A::from_int(with_padding ? padded : static_cast<int64_t>(values.size())));
  });
}

}  // namespace

template <class A>
std::vector<KernelRow> window_rows() {
  return {{Op::Conv, conv<A>},
          {Op::FusedConv, conv<A>},
          {Op::ConvTranspose, conv_transpose<A>},
          {Op::MaxPool, max_pool<A>},
          {Op::AveragePool, average_pool<A>}};
}

RLOPT_INSTANTIATE(window_rows)

}  // namespace rlopt
