// Questions about the weights, answered while they go by. A row's state (m, l) is known or found
// first; then its weights 2^(s - m) / l come block by block, each already what it is in the end.
#pragma once
#include "scores.h"
#include "top.h"

namespace {

using eyeline::Ask;
using eyeline::Chunk;
using eyeline::Question;
using eyeline::Questions;
using eyeline::Watch;

// What adds up along a row.
struct Along {
  float weights = 0.0f;   // Σ 2^x, x = s - m
  float surprise = 0.0f;  // Σ 2^x · x
  float top = -infinity;  // the largest of what a line of scores holds
  int64_t key = -1;
};

// A row's weights, from what a line of scores holds.
struct Weight {
  float factor, shift, share, total;

  Weight(const Softmax& state, float factor)
      : factor(factor),
        shift(state.m == -infinity ? 0.0f : state.m),
        share(state.l == 0.0f ? 0.0f : 1.0f / state.l),
        total(state.l == 0.0f ? 1.0f : state.l) {}

  F exponent(F s) const { return s * factor - shift; }
  F operator()(F s) const { return exp2(exponent(s)) * share; }
  // The same divided: what a row gives its only key is 1.
  F exact(F s) const { return exp2(exponent(s)) / total; }
};

struct Range {
  int64_t begin, end;
};

struct Reduce {
  const Problem& p;
  const Questions& asked;
  Chunk chunk;
  Scores scores;
  Softmax* state;  // [strips · R]
  Along* along;    // [strips · R]
  float* totals;   // [KEYS] of a strip's weights
  float* sums;     // [KEYS] of some of them, or by other factors than 1
  bool totalled;   // whether the strip at hand has its totals
  bool searched;   // whether scores themselves are looked at
  bool weighed;    // whether weights are, or their state is all
  bool entered;    // whether some weights are asked for as they are
  bool whole;      // whether all entries of every row are, and nothing else
  bool known;      // whether the part's state is

  static int64_t bytes(const Problem& p) {
    return Scores::bytes(p) + 2 * KEYS * 4 + 5 * 64 +
           Scores::most_rows(p) * static_cast<int64_t>(sizeof(Softmax) + sizeof(Along));
  }

  Reduce(const Problem& p, const Questions& asked, const Chunk& chunk, char* memory)
      : p(p), asked(asked), chunk(chunk), scores(p, memory) {
    state = take<Softmax>(memory, Scores::most_rows(p));
    along = take<Along>(memory, Scores::most_rows(p));
    totals = take<float>(memory, KEYS);
    sums = take<float>(memory, KEYS);
    totalled = searched = weighed = entered = known = false;
    whole = true;
    for (const Question& question : asked) {
      const bool entries = question.ask == Ask::entries;
      searched |= question.ask == Ask::largest || question.ask == Ask::top;
      weighed |= question.ask != Ask::state && question.ask != Ask::lse && !entries;
      entered |= entries;
      whole &= entries && question.count == p.Tk;
    }
    if (entered && !weighed) scores.read_one_directly();
  }

  int64_t head_of(const Row& row) const { return chunk.n * p.Hq + row.h; }
  int64_t number_of(const Row& row) const { return head_of(row) * p.Tq + row.i; }

  // [count, padded] of this chunk and a query head, or [key cells].
  float* partial(const Question& question, int64_t head) const {
    const int64_t width = question.by_key() ? question.count * asked.padded : question.key_cells;
    return question.partial + (chunk.number * p.N * p.Hq + head) * width;
  }

  void clear() {
    for (const Question& question : asked) {
      const bool pool = question.ask == Ask::pool;
      if (!question.by_key() && !pool) continue;
      const int64_t width = pool ? question.key_cells : question.count * asked.padded;
      for (int64_t h = chunk.head * p.group(); h < (chunk.head + 1) * p.group(); ++h)
        std::memset(partial(question, chunk.n * p.Hq + h), 0, static_cast<size_t>(width * 4));
    }
  }

  // Whether the state of a part's rows is known. Of few rows another pass may have summed up scores
  // or weights in another order, and their state costs little; it costs nothing where all entries
  // are looked at in any case.
  bool is_known() const {
    if (!asked.m || whole || p.Tq * p.group() <= eyeline::FEW_ROWS) return false;
    for (int64_t i = 0; i < scores.count; ++i)
      if (!Softmax::kept(asked.m[number_of(scores.row[i])])) return false;
    return true;
  }

  // The keys that are to be looked at when the state is known, from the beginning of a block on.
  Range left() const {
    if (weighed) return {0, p.Tk};
    Range keys{p.Tk, 0};
    for (const Question& question : asked) {
      if (question.ask != Ask::entries || !known) continue;
      keys.begin = smaller(keys.begin, question.offset / p.blocks.keys * p.blocks.keys);
      keys.end = larger(keys.end, question.offset + question.count);
    }
    return keys;
  }

  template <class T>
  bool find_state(const Watch& watch) {
    const int64_t rows = scores.count;
    known = is_known();
    for (int64_t i = 0; i < rows; ++i) {
      along[i] = {};
      state[i].start(p, chunk.n, scores.row[i]);
    }
    const auto add = [&](int strip, int held, int64_t first) {
      if (entered) put_down(strip, held, first);
      const int lo = scores.low(strip), hi = scores.high(strip);
      for (int r = 0; r < scores.rows_of(strip); ++r) {
        float* line = scores.line(held, r);
        const float top = Softmax::largest_of(line, lo, hi, scores.factor);
        state[strip * R + r].add(line, lo, hi, scores.factor, top);
      }
    };
    if (!known && !scores.each<T>(watch, 0, p.Tk, add)) return false;
    for (int64_t i = 0; i < rows; ++i) settle(scores.row[i], state[i]);
    return true;
  }

  // The state as it is handed over, so that it makes no difference who has found it. A whole row
  // is divided by its sum as it was found: its only key has weight 1.
  void settle(const Row& row, Softmax& state) {
    const int64_t number = number_of(row);
    float m = 0.0f, l = 0.0f;
    if (known)
      m = asked.m[number], l = asked.l[number];
    else
      state.write(&m, &l);
    for (const Question& question : asked)
      if (question.ask == Ask::state) question.values[number] = m, question.more[number] = l;
    if (Softmax::kept(m) && !whole) state.read(m, l);
  }

  void search(const Row& row, int64_t first, int lo, int hi, const float* line, Along& found) {
    const F high = largest_lanes(line, lo, hi);
    const float top = largest(high);
    if (top > found.top) {
      found.top = top;
      found.key = first + first_equal(line, lo, hi, top);
    }
    for (const Question& question : asked) {
      if (question.ask != Ask::top) continue;
      const int64_t at = number_of(row) * question.count;
      Top best{question.count, question.values + at, question.keys + at};
      best.add(line, lo, hi, first, high);
      if (!best.full())
        for (int j = lo; j < hi; ++j)
          if (line[j] == -infinity && first + j < p.Tk && sees(p, chunk.n, row, first + j))
            best.fill(-infinity, first + j);
    }
  }

  // Scores that are asked for as weights; they become weights when the row's state is known.
  void put_down(int strip, int held, int64_t first) {
    for (const Question& question : asked) {
      if (question.ask != Ask::entries) continue;
      const int64_t begin = question.offset, end = begin + question.count;
      const int64_t from = larger(first + scores.low(strip), begin);
      const int64_t to = smaller(first + scores.high(strip), end);
      if (from >= to) continue;
      for (int r = 0; r < scores.rows_of(strip); ++r)
        std::memcpy(
            question.values + number_of(scores.row[strip * R + r]) * question.count + from - begin,
            scores.line(held, r) + from - first, static_cast<size_t>(to - from) * 4);
    }
  }

  // Logits of the rows from `first` on become weights, and totals [lo, hi) their sums.
  template <int rows>
  void weigh(int strip, int held, int first, int lo, int hi) {
    constexpr float nothing = -200.0f;  // 2^x is 0 there; in place of -inf, which would make NaN
    float *line[rows], factor[rows], shift[rows], share[rows];
    F weights[rows], surprise[rows];
    for (int r = 0; r < rows; ++r) {
      const Softmax& of = state[strip * R + first + r];
      line[r] = scores.line(held, first + r);
      const Weight weight(of, of.near(line[r] + lo, hi - lo, scores.factor));
      factor[r] = weight.factor, shift[r] = weight.shift, share[r] = weight.share;
      weights[r] = surprise[r] = F{};
    }
    for (int j = lo; j < hi; j += W) {
      F total{};
#pragma GCC unroll 6
      for (int r = 0; r < rows; ++r) {
        const F x = load(line[r] + j) * factor[r] - shift[r], w = exp2(x), given = w * share[r];
        weights[r] += w;
        surprise[r] += w * max(splat(nothing), x);
        store(line[r] + j, given);
        total += given;
      }
      store(totals + j, total);
    }
    for (int r = 0; r < rows; ++r) {
      along[strip * R + first + r].weights += sum(weights[r]);
      along[strip * R + first + r].surprise += sum(surprise[r]);
    }
  }

  // A row with a NaN or +inf among its scores: every weight that it sees is NaN.
  void weigh_nan(const Row& row, int64_t first, int lo, int hi, float* line, Along& found) {
    found.weights = __builtin_nanf("");
    for (int j = lo; j < hi; ++j) {
      if (line[j] != line[j] && found.top == found.top) {
        found.top = line[j];
        found.key = first + j;
      }
      const bool visible = first + j < p.Tk && sees(p, chunk.n, row, first + j);
      line[j] = visible ? found.weights : 0.0f;
    }
  }

  // Σ weights · y [lo, hi) over the rows of a strip that begin with r and are `step` apart; of all
  // rows, each by 1, it is known.
  template <class Y>
  const float* add_rows(int held, int rows, int r, int stop, int step, int lo, int hi, const Y& y) {
    float factor[R];
    bool known = totalled && r == 0 && stop == rows && step == 1;
    for (int i = r; i < stop; i += step) known &= (factor[i] = y(i)) == 1.0f;
    if (known) return totals;
    for (int j = lo; j < hi; j += W) {
      F total{};
      for (int i = r; i < stop; i += step) total += load(scores.line(held, i) + j) * factor[i];
      store(sums + j, total);
    }
    return sums;
  }

  void add_columns(const Question& question, int strip, int held, int64_t first) {
    const int lo = scores.low(strip), hi = scores.high(strip), rows = scores.rows_of(strip);
    const int group = static_cast<int>(p.group());
    const Row* row = scores.row + strip * R;
    for (int r = 0; r < rows && r < group; ++r)
      for (int64_t f = 0; f < question.count; ++f) {
        const float* from = add_rows(held, rows, r, rows, group, lo, hi, [&](int i) {
          return *question.factor.at<const float>(chunk.n, row[i].h, row[i].i, f);
        });
        float* to = partial(question, head_of(row[r])) + f * asked.padded + first;
        for (int j = lo; j < hi; j += W) store(to + j, load(to + j) + load(from + j));
      }
  }

  void add_seen(const Question& question, int strip, int64_t first) {
    const Span sp = scores.span[strip];
    for (int r = 0; r < scores.rows_of(strip); ++r) {
      const Row row = scores.row[strip * R + r];
      float* to = partial(question, head_of(row)) + first;
      for (int j = sp.lo; j < sp.hi; ++j)
        to[j] += (sp.sight == Sight::all && !p.bias && !p.relative) ||
                 sees(p, chunk.n, row, first + j);
    }
  }

  void add_cells(const Question& question, int strip, int held, int64_t first) {
    const int rows = scores.rows_of(strip), group = static_cast<int>(p.group());
    const Row* row = scores.row + strip * R;
    const int64_t begin = question.row_edges[0], end = question.row_edges[question.row_cells];
    for (int head = 0; head < rows && head < group; ++head)
      for (int r = head, stop; r < rows; r = stop) {
        const int64_t i = row[r].i;
        stop = r + group;
        if (i < begin || i >= end) continue;
        const int64_t cell = eyeline::cell_of(question.row_edges, question.row_cells, i);
        while (stop < rows && row[stop].i < question.row_edges[cell + 1]) stop += group;
        const int lo = scores.low(strip), hi = scores.high(strip);
        const float* from = add_rows(held, rows, r, stop < rows ? stop : rows, group, lo, hi,
                                     [](int) { return 1.0f; });
        add_line(question, cell, head_of(row[r]), scores.span[strip], first, from);
      }
  }

  // A strip's sums to the cells of one row of cells.
  void add_line(const Question& question, int64_t cell, int64_t head, const Span& sp, int64_t first,
                const float* from) {
    const int64_t cells = question.key_cells, *edges = question.key_edges;
    const bool shared = question.row_edges[cell] <= larger(chunk.start, question.row_edges[0]);
    float* to = shared ? partial(question, head)
                       : question.values + (head * question.row_cells + cell) * cells;
    const int64_t lo = larger(first + sp.lo, edges[0]), hi = smaller(first + sp.hi, edges[cells]);
    if (lo >= hi) return;
    for (int64_t c = eyeline::cell_of(edges, cells, lo); c < cells && edges[c] < hi; ++c) {
      int64_t j = larger(edges[c], lo) - first;
      const int64_t stop = smaller(edges[c + 1], hi) - first;
      F total{};
      for (; j + W <= stop; j += W) total += load(from + j);
      float rest = sum(total);
      for (; j < stop; ++j) rest += from[j];
      to[c] += rest;
    }
  }

  void pick_diagonal(const Question& question, int strip, int held, int64_t first) {
    const Span sp = scores.span[strip];
    for (int r = 0; r < scores.rows_of(strip); ++r) {
      const Row row = scores.row[strip * R + r];
      const int64_t j = p.position(row.i) + question.offset - first;
      if (j >= sp.lo && j < sp.hi) question.values[number_of(row)] = scores.line(held, r)[j];
    }
  }

  void answer(int strip, int held, int64_t first) {
    const int lo = scores.low(strip), hi = scores.high(strip);
    if (entered && known) put_down(strip, held, first);
    if (!weighed) return;
    const int rows = scores.rows_of(strip);
    totalled = true;
    for (int r = 0, at = strip * R; r < rows; ++r, ++at) {
      if (searched) search(scores.row[at], first, lo, hi, scores.line(held, r), along[at]);
      totalled &= state[at].l == state[at].l;
    }
    if (totalled)
      with_rows(rows, [&](auto all) { weigh<decltype(all)::value>(strip, held, 0, lo, hi); });
    for (int r = 0, at = strip * R; r < rows && !totalled; ++r, ++at)
      if (state[at].l != state[at].l)
        weigh_nan(scores.row[at], first, lo, hi, scores.line(held, r), along[at]);
      else
        weigh<1>(strip, held, r, lo, hi);
    for (const Question& question : asked) {
      if (question.ask == Ask::columns) add_columns(question, strip, held, first);
      if (question.ask == Ask::seen) add_seen(question, strip, first);
      if (question.ask == Ask::pool) add_cells(question, strip, held, first);
      if (question.ask == Ask::diagonal) pick_diagonal(question, strip, held, first);
    }
  }

  // Σ -w log w over the keys; a sink has its share of l and no part in the sum.
  static float entropy(const Softmax& state, const Along& found) {
    if (state.l == 0.0f) return 0.0f;
    const double logarithm = __builtin_log(static_cast<double>(state.l));
    const double nats = (logarithm * found.weights - ln2 * found.surprise) / state.l;
    return nats < 0.0 ? 0.0f : static_cast<float>(nats);
  }

  // Scores of which none was met yet.
  void start_scores(const Question& question, const Row& row) {
    const int64_t at = number_of(row) * question.count;
    for (int64_t a = at; a < at + question.count; ++a) {
      question.values[a] = -infinity;
      if (question.ask == Ask::top) question.keys[a] = -1;
    }
  }

  // Scores become weights. A row of NaN names the first keys that it sees.
  void finish_top(const Question& question, const Row& row, const Softmax& state) {
    float* value = question.values + number_of(row) * question.count;
    int64_t* key = question.keys + number_of(row) * question.count;
    if (state.l != state.l) {
      start_scores(question, row);
      Top best{question.count, value, key};
      for (int64_t j = 0; j < p.Tk && !best.full(); ++j)
        if (sees(p, chunk.n, row, j)) best.fill(state.l, j);
    }
    const Weight weight(state, state.near(value, question.count, scores.factor));
    for (int64_t a = 0; a < question.count; ++a) {
      if (state.l == state.l) value[a] = weight.exact(splat(value[a]))[0];
      if (key[a] < 0) value[a] = 0.0f;
    }
  }

  // Scores that were put down become weights; all that the row sees are NaN where one is.
  void finish_entries(const Question& question, const Row& row, const Softmax& state) {
    float* w = question.values + number_of(row) * question.count;
    const Weight weight(state, state.near(w, question.count, scores.factor));
    int64_t j = 0;
    if (state.l != state.l)
      for (; j < question.count; ++j)
        w[j] = sees(p, chunk.n, row, question.offset + j) ? state.l : 0.0f;
    for (; j + W <= question.count; j += W) store(w + j, weight.exact(load(w + j)));
    for (; j < question.count; ++j) w[j] = weight.exact(splat(w[j]))[0];
  }

  void finish_row(const Question& question, const Row& row, const Softmax& state,
                  const Along& found) {
    const int64_t number = number_of(row);
    switch (question.ask) {
      case Ask::lse: question.values[number] = state.lse(); return;
      case Ask::entropy: question.values[number] = entropy(state, found); return;
      case Ask::largest:
        question.values[number] = found.top * scores.unit;
        question.keys[number] = found.key;
        return;
      case Ask::top: return finish_top(question, row, state);
      case Ask::entries: return finish_entries(question, row, state);
      default: return;
    }
  }

  template <class T>
  void run(const Watch& watch) {
    clear();
    const int64_t group = p.group(), stop = chunk.stop * group, most = p.blocks.strips * R;
    for (int64_t r = chunk.start * group; r < stop; r += most) {
      scores.start<T>(chunk.n, chunk.head, r, smaller(r + most, stop));
      const int64_t rows = scores.count;
      for (const Question& question : asked)
        for (int64_t i = 0; i < rows; ++i)
          if (question.ask == Ask::top || question.ask == Ask::entries)
            start_scores(question, scores.row[i]);
      if (!find_state<T>(watch)) return;
      const auto answered = [&](int strip, int held, int64_t first) { answer(strip, held, first); };
      const Range keys = left();
      if (!scores.each<T>(watch, keys.begin, keys.end, answered)) return;
      for (const Question& question : asked)
        for (int64_t i = 0; i < rows; ++i) finish_row(question, scores.row[i], state[i], along[i]);
    }
  }
};

void reduce(const Problem& p, const Questions& questions, const Chunk& chunk, char* memory,
            const Watch& watch) {
  Reduce work(p, questions, chunk, memory);
  with_number(p.number, [&](auto number) { work.run<decltype(number)>(watch); });
}

}  // namespace
