// Dense convolutions. Included once for each instruction set, behind vectors.h.

/// Whether each output pixel is made of one pixel, all in one row: a product of matrices.
inline bool is_row(const Convolution& given) {
  return given.out_height == 1 && given.num_taps() == 1 && given.out_width == given.width &&
         given.pad_y == 0 && given.pad_x == 0;
}

/// Where the kernel lies over some output pixels that follow on each other.
template <int kPixels>
struct Windows {
  int64_t y[kPixels], x[kPixels];

  /// The last pixel is repeated where there are fewer than kPixels.
  Windows(const Convolution& given, int64_t first, int64_t count) {
    if (is_row(given)) {
      for (int64_t i = 0; i < kPixels; ++i) y[i] = 0, x[i] = first + (i < count ? i : count - 1);
      return;
    }
    int64_t row = first / given.out_width, column = first % given.out_width;
    for (int64_t i = 0; i < kPixels; ++i) {
      y[i] = row * given.stride_y - given.pad_y;
      x[i] = column * given.stride_x - given.pad_x;
      if (i + 1 < count && ++column == given.out_width) column = 0, ++row;
    }
  }
};

/// kPixels pixels times kVectors vectors of output channels, in registers until they are written.
template <int kPixels, int kVectors>
void dense_tile(const Job& job, const float* image, const float* weight, const float* bias, int64_t first,
                int64_t count, int64_t channel, int64_t place) {
  const Convolution& given = *job.given;
  const Windows<kPixels> windows(given, first, count);
  Vector sums[kPixels][kVectors];
  for (int j = 0; j < kVectors; ++j)
    for (int i = 0; i < kPixels; ++i) sums[i][j] = load(bias + j * kVector);
  const int64_t channels = given.channels;
  for (int64_t ky = 0; ky < given.kernel_height; ++ky) {
    for (int64_t kx = 0; kx < given.kernel_width; ++kx) {
      const float* pixels[kPixels];
      bool is_seen = false;
      for (int i = 0; i < kPixels; ++i) {
        const int64_t y = windows.y[i] + ky * given.dilation_y, x = windows.x[i] + kx * given.dilation_x;
        const bool is_inside = static_cast<uint64_t>(y) < static_cast<uint64_t>(given.height) &&
                               static_cast<uint64_t>(x) < static_cast<uint64_t>(given.width);
        pixels[i] = is_inside ? image + y * given.row_stride + x * given.pixel_stride : job.zeros;
        is_seen |= is_inside;
      }
      if (!is_seen) {
        weight += channels * kVectors * kVector;
        continue;
      }
      for (int64_t c = 0; c < channels; ++c) {
        Vector row[kVectors];
        for (int j = 0; j < kVectors; ++j) row[j] = load(weight + j * kVector);
        for (int i = 0; i < kPixels; ++i) {
          const float value = pixels[i][c];
          for (int j = 0; j < kVectors; ++j) sums[i][j] += value * row[j];
        }
        weight += kVectors * kVector;
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    float* const out = job.out + (place + i) * given.out_pixel_stride + channel;
    const float* const summand = job.summand + (place + i) * given.out_channels + channel;
    for (int j = 0; j < kVectors; ++j) {
      const int64_t begin = j * kVector, left = given.out_channels - channel - begin;
      Vector sum = sums[i][j];
      if (job.summand != nullptr)
        sum += left >= kVector ? load(summand + begin) : load_some(summand + begin, left);
      sum = activate(sum, given.activation, given.low, given.high);
      if (left >= kVector)
        store(out + begin, sum);
      else
        store_some(out + begin, sum, left);
    }
  }
}

template <int kPixels, int kVectors>
void dense_panel(const Job& job, int64_t panel_begin, const float* weight, int64_t image, Share tiles) {
  const Convolution& given = *job.given;
  const int64_t pixels = given.out_height * given.out_width, channel = panel_begin * kVector;
  for (int64_t tile = tiles.first; tile < tiles.last; ++tile) {
    const int64_t first = tile * kPixels;
    dense_tile<kPixels, kVectors>(job, job.in + image * given.image_stride, weight, job.packed + channel,
                                  first, std::min<int64_t>(kPixels, pixels - first), channel,
                                  image * pixels + first);
  }
}

/// Output pixels of a tile, by the vectors of its panel: as many as the registers hold.
constexpr int kTilePixels[] = {0, RLOPT_PIXELS};

/// So many pixels are computed one by one: weights come from memory longer than a tile takes.
constexpr int64_t kFewPixels = 2;

void dense(const Job& job, int thread, int num_threads) {
  const Convolution& given = *job.given;
  const Panels panels(given.out_channels, kVector, kWidestPanel);
  const int64_t pixels = given.out_height * given.out_width;
  const int64_t terms = given.num_taps() * given.channels;
  const bool is_few = pixels <= kFewPixels;
  const float* const weights = job.packed + panels.vectors * kVector;
  // The work is counted in output vectors, and cut between tiles.
  const Share share = share_of(given.images * panels.vectors * pixels, thread, num_threads);
  int64_t before = 0;
  for (int64_t image = 0; image < given.images; ++image) {
    for (int64_t panel = 0; panel < panels.count; ++panel) {
      const int64_t width = panels.width(panel), size = width * pixels;
      const int64_t tile = is_few ? 1 : kTilePixels[width];
      const auto cut = [&](int64_t at) {
        const int64_t inside = std::clamp<int64_t>(at - before, 0, size) / width;
        return inside == pixels ? (pixels + tile - 1) / tile : inside / tile;
      };
      const Share tiles{cut(share.first), cut(share.last)};
      before += size;
      if (tiles.first == tiles.last) continue;
      const int64_t begin = panels.begin(panel);
      const float* const weight = weights + begin * kVector * terms;
      RLOPT_DENSE_PANELS
    }
  }
}
