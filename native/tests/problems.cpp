#include "problems.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numbers.h"

namespace eyeline {

namespace {

constexpr double most_work = 4e6;  // multiplications of a problem, so that many are soon done
constexpr float hidden = -INFINITY;

// Calls f(address) for each entry that lies in memory.
template <class Call>
void for_each(const View& view, const Sizes& sizes, int64_t bytes, const Call& f) {
  int64_t n[4] = {1, 1, 1, 1};
  for (size_t d = 0; d < sizes.size(); ++d) n[d] = view.stride[d] ? sizes[d] : sizes[d] > 0;
  for (int64_t a = 0; a < n[0]; ++a)
    for (int64_t b = 0; b < n[1]; ++b)
      for (int64_t c = 0; c < n[2]; ++c)
        for (int64_t d = 0; d < n[3]; ++d)
          f(view.data + bytes * (a * view.stride[0] + b * view.stride[1] + c * view.stride[2] +
                                 d * view.stride[3]));
}

template <class T, class Draw>
void fill(const View& view, const Sizes& sizes, const Draw& draw) {
  for_each(view, sizes, sizeof(T), [&](char* at) {
    const T made = static_cast<T>(draw());
    std::memcpy(at, &made, sizeof made);
  });
}

}  // namespace

uint64_t Random::bits() {
  uint64_t x = state_ += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

double Random::normal() {
  constexpr double two_pi = 6.28318530717958647692;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(two_pi * uniform());
}

Drawn::Drawn(uint64_t seed) : random_(seed) {
  draw_sizes();
  draw_operands();
  draw_options();
  draw_positions();
  draw_mask();
  if (problem.N * problem.Tk > 0 && random_.chance(0.3)) spoil();
}

View Drawn::memory(const Sizes& sizes, int64_t bytes, const Layout& layout) {
  View view;
  int64_t entries = 1;
  for (size_t place = sizes.size(); place-- > 0;) {
    const size_t d = sizes.size() == 4 ? static_cast<size_t>(layout.order[place] - 'a') : place;
    if (layout.shared[d]) continue;
    view.stride[d] = sizes[d] == 1 ? 0 : entries;
    entries *= sizes[d];
    if (place + 1 == sizes.size()) entries += layout.gap;
  }
  const auto whole = static_cast<size_t>(entries * bytes);
  held_.push_back(std::make_unique<char[]>(std::max<size_t>(whole, 1)));
  view.data = held_.back().get();
  std::memset(view.data, 0xff, whole);  // as a float of any size: NaN
  return view;
}

View Drawn::operand(const Sizes& sizes, double deviation) {
  const char* const orders[] = {"abcd", "abcd", "acbd", "abdc", "cbad"};
  const int64_t bytes = bytes_of(problem.number);
  const Layout layout{random_.one_of(orders), random_.chance(0.3) ? 3 : 0, {}};
  const View view = memory(sizes, bytes, layout);
  for_each(view, sizes, bytes,
           [&](char* at) { write(problem.number, random_.normal() * deviation, at); });
  return view;
}

Layout Drawn::mask_layout() {
  const double often = random_.chance(0.5) ? 0.9 : 0.2;
  return {"abcd", 0, {random_.chance(often), random_.chance(often), false, false}};
}

void Drawn::draw_sizes() {
  Problem& p = problem;
  const int64_t queries[] = {0, 1, 1, 1, 2, 5, 6, 7, 12, 13, 14, 48, 100, 300, 800};
  const int64_t keys[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 100, 300, 511, 512, 513, 1030};
  const int64_t lengths[] = {1, 2, 3, 8, 15, 16, 17, 32, 40, 64, 70, 96, 128};
  const int64_t few[] = {1, 1, 1, 2, 3}, groups[] = {1, 1, 2, 3, 4, 8};
  const char* const names[] = {"float32", "bfloat16", "float16"};
  do {
    p.N = random_.one_of(few), p.Hk = random_.one_of(few);
    p.Hq = p.Hk * random_.one_of(groups);
    p.Tq = random_.one_of(queries), p.Tk = random_.one_of(keys);
    p.D = random_.one_of(lengths), p.Dv = random_.chance(0.5) ? p.D : random_.one_of(lengths);
  } while (static_cast<double>(p.N * p.Hq * p.Tq * p.Tk * (p.D + p.Dv)) > most_work);
  p.number = static_cast<Number>(random_.below(3));
  Caches pretended;
  pretended.level2 = random_.one_of({8, 64, 128, 512, 4096}) * 1024;
  p.blocks = blocks(pretended, p.D, p.Dv);
  p.backward = backward_blocks(pretended, p.D);
  words = names[static_cast<int>(p.number)];
  for (const auto& [name, size] : {std::pair("N", p.N), {"Hq", p.Hq}, {"Hk", p.Hk}, {"Tq", p.Tq},
                                   {"Tk", p.Tk}, {"D", p.D}, {"Dv", p.Dv},
                                   {"keys", p.blocks.keys}, {"held", p.blocks.held},
                                   {"strips", p.blocks.strips},
                                   {"backward keys", p.backward.keys},
                                   {"held", p.backward.held}, {"strips", p.backward.strips}})
    words += std::string(" ") + name + "=" + std::to_string(size);
}

void Drawn::draw_operands() {
  Problem& p = problem;
  sharp_ = random_.chance(0.2);
  if (sharp_) words += " sharp";
  p.q = operand({p.N, p.Hq, p.Tq, p.D}, sharp_ ? 10.0 : 1.0);
  p.k = operand({p.N, p.Hk, p.Tk, p.D}, sharp_ ? 10.0 : 1.0);
  p.v = operand({p.N, p.Hk, p.Tk, p.Dv});
}

void Drawn::draw_options() {
  Problem& p = problem;
  p.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.D)));
  if (random_.chance(0.1)) p.scale = -p.scale, words += " scale<0";
  if (random_.chance(0.2)) p.softcap = 3.0f, words += " softcap";
  if (random_.chance(0.2)) {
    const Sizes sizes{p.N, p.Hq};
    p.sinks = memory(sizes, 4, mask_layout());
    fill<float>(p.sinks, sizes, [&] { return random_.chance(0.1) ? hidden : random_.normal(); });
    words += " sinks";
  }
  if (random_.chance(0.2)) {
    const Sizes sizes{p.N, p.Hq, p.Tq, p.Tk};
    p.bias = memory(sizes, 4, mask_layout());
    fill<float>(p.bias, sizes, [&] { return random_.chance(0.1) ? hidden : random_.normal(); });
    words += " bias";
  }
  if (random_.chance(0.2)) {
    const double share = random_.one_of({0.1, 0.5, 1.0});
    p.dropout.here = true;
    p.dropout.seed = random_.bits() >> 1;
    p.dropout.threshold = static_cast<uint64_t>(share * (1 << 24));
    p.dropout.scale = share == 1.0 ? 0.0f : static_cast<float>(1.0 / (1.0 - share));
    words += " dropout";
  }
}

// Where queries stand; and a bias for each distance, -inf among them.
void Drawn::draw_positions() {
  Problem& p = problem;
  p.first_position = p.Tk - p.Tq + random_.below(5) - 2;
  if (random_.chance(0.2)) {
    const Sizes sizes{p.Tq};
    const View places = memory(sizes, 8, {});
    fill<int64_t>(places, sizes, [&] { return random_.below(p.Tk + 10) - 5; });
    p.positions = places.at<int64_t>(0);
    words += " positions";
  }
  if (p.Tq == 0 || !random_.chance(0.2)) return;
  int64_t first = p.position(0), last = first;
  for (int64_t i = 1; i < p.Tq; ++i)
    first = std::min(first, p.position(i)), last = std::max(last, p.position(i));
  p.origin = last;
  const Sizes sizes{p.N, p.Hq, last - first + p.Tk};
  p.relative = memory(sizes, 4, mask_layout());
  fill<float>(p.relative, sizes, [&] { return random_.chance(0.1) ? hidden : random_.normal(); });
  words += " relative";
}

void Drawn::draw_mask() {
  const Problem& p = problem;
  Visible& v = problem.visible;
  if (random_.chance(0.5)) draw_intervals(mask_layout());
  if (random_.chance(0.2)) {
    const Sizes sizes{p.N, p.Hq, p.Tk};
    v.keep = memory(sizes, 1, mask_layout());
    fill<uint8_t>(v.keep, sizes, [&] { return random_.chance(0.8); });
    words += " keep";
  }
  if (random_.chance(0.2)) {
    const Sizes queries{p.N, p.Hq, p.Tq}, keys{p.N, p.Hq, p.Tk};
    v.q_ids = memory(queries, 8, mask_layout());
    v.k_ids = memory(keys, 8, mask_layout());
    fill<int64_t>(v.q_ids, queries, [&] { return random_.below(3); });
    fill<int64_t>(v.k_ids, keys, [&] { return random_.below(3); });
    words += " ids";
  }
  if (random_.chance(0.2)) {
    const Sizes sizes{p.N, p.Hq, p.Tq, p.Tk};
    v.dense = memory(sizes, 1, mask_layout());
    const double share = random_.one_of({0.02, 0.5, 0.98});
    fill<uint8_t>(v.dense, sizes, [&] { return random_.chance(share); });
    words += " dense";
  }
}

// Causal, a window, or anything: sorted, disjoint, the empty ones last.
void Drawn::draw_intervals(const Layout& layout) {
  const Problem& p = problem;
  Visible& v = problem.visible;
  const char* const kinds[] = {"causal", "window", "intervals"};
  const int64_t kind = random_.below(3), window = random_.below(p.Tk + 1);
  v.intervals = kind == 2 ? 1 + random_.below(3) : 1;
  const Sizes sizes{p.N, p.Hq, p.Tq, v.intervals};
  v.starts = memory(sizes, 8, layout);
  v.stops = memory(sizes, 8, layout);
  for (int64_t n = 0; n < (layout.shared[0] ? 1 : p.N); ++n)
    for (int64_t h = 0; h < (layout.shared[1] ? 1 : p.Hq); ++h)
      for (int64_t i = 0; i < p.Tq; ++i) {
        Sizes cuts;
        const int64_t stop = std::clamp<int64_t>(p.position(i) + 1, 0, p.Tk);
        if (kind < 2)
          cuts = {kind == 0 ? 0 : std::max<int64_t>(stop - window, 0), stop};
        else
          for (int64_t a = 0; a < 2 * v.intervals; ++a) cuts.push_back(random_.below(p.Tk + 1));
        std::sort(cuts.begin(), cuts.end());
        int64_t to = 0;
        for (int64_t a = 0; a < v.intervals; ++a) {
          if (cuts[2 * a] == cuts[2 * a + 1]) continue;
          *v.starts.at<int64_t>(n, h, i, to) = cuts[2 * a];
          *v.stops.at<int64_t>(n, h, i, to++) = cuts[2 * a + 1];
        }
        for (; to < v.intervals; ++to)
          *v.starts.at<int64_t>(n, h, i, to) = *v.stops.at<int64_t>(n, h, i, to) = 0;
      }
  words += std::string(" ") + kinds[kind];
}

// A key or value that is not finite: who may not see it must not notice.
void Drawn::spoil() {
  const Problem& p = problem;
  const bool key = random_.chance(0.5);
  const View& view = key ? p.k : p.v;
  const int64_t d = random_.below(key ? p.D : p.Dv);
  // A weight too small for a float makes NaN of inf: infinite values only where none is.
  const double value = !key && sharp_ ? NAN : random_.one_of({NAN, INFINITY, -INFINITY});
  const int64_t at = random_.below(p.N) * view.stride[0] + random_.below(p.Hk) * view.stride[1] +
                     random_.below(p.Tk) * view.stride[2] + d * view.stride[3];
  write(p.number, value, view.data + at * bytes_of(p.number));
  words += key ? " bad-key" : " bad-value";
}

}  // namespace eyeline
