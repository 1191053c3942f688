// The one file that knows Python. Tensors arrive as addresses and strides; whoever calls keeps them
// alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "backward.h"
#include "caches.h"
#include "forward.h"
#include "reduce.h"
#include "table.h"
#include "team.h"

namespace nb = nanobind;
using namespace eyeline;

namespace {

// address, four strides in elements
using Tensor = std::optional<std::array<int64_t, 5>>;

View view(const Tensor& tensor) {
  View made;
  if (!tensor) return made;
  made.data = reinterpret_cast<char*>((*tensor)[0]);
  for (int d = 0; d < 4; ++d) made.stride[d] = (*tensor)[1 + d];
  return made;
}

// Python's pending signals, asked for now and then by the calling thread, which holds no GIL.
struct Signals {
  int stopped = 0;
  std::chrono::steady_clock::time_point asked = std::chrono::steady_clock::now();

  static void poll(void* self) {
    constexpr auto pause = std::chrono::milliseconds(20);
    Signals& signals = *static_cast<Signals*>(self);
    const auto now = std::chrono::steady_clock::now();
    if (now - signals.asked < pause || signals.stopped) return;
    signals.asked = now;
    nb::gil_scoped_acquire hold;
    if (PyErr_CheckSignals() != 0) __atomic_store_n(&signals.stopped, 1, __ATOMIC_RELAXED);
  }

  Watch watch() { return {poll, this, &stopped}; }
};

// As eyeline/backends/arguments.py lays them out.
using Numbers = std::tuple<int, std::array<int64_t, 6>, std::array<Tensor, 2>, double, double,
                           std::array<Tensor, 3>, std::array<int64_t, 4>, std::array<Tensor, 6>,
                           int64_t>;

Problem problem(const Numbers& numbers) {
  const auto& [number, sizes, main, scale, softcap, more, places, visible, intervals] = numbers;
  Problem p;
  p.number = static_cast<Number>(number);
  p.N = sizes[0], p.Hq = sizes[1], p.Hk = sizes[2], p.Tq = sizes[3], p.Tk = sizes[4];
  p.D = sizes[5];
  p.q = view(main[0]), p.k = view(main[1]);
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);
  p.bias = view(more[0]), p.relative = view(more[1]), p.sinks = view(more[2]);
  p.origin = places[0], p.first_position = places[1], p.position_step = places[2];
  p.positions = reinterpret_cast<const int64_t*>(places[3]);
  p.visible.starts = view(visible[0]), p.visible.stops = view(visible[1]);
  p.visible.keep = view(visible[2]);
  p.visible.q_ids = view(visible[3]), p.visible.k_ids = view(visible[4]);
  p.visible.dense = view(visible[5]);
  p.visible.intervals = intervals;
  return p;
}

Dropout dropping(const std::optional<std::tuple<int64_t, int64_t, double>>& numbers) {
  if (!numbers) return {};
  const auto& [seed, threshold, scale] = *numbers;
  return {true, static_cast<uint64_t>(seed), static_cast<uint64_t>(threshold),
          static_cast<float>(scale)};
}

float* floats(int64_t address) { return reinterpret_cast<float*>(address); }

const Table& chosen(const std::string& name) {
  const Table* found = table(name.c_str());
  if (!found) throw nb::value_error(("no table " + name).c_str());
  return *found;
}

// `work(watch)` without the GIL; it says whether there was memory.
template <class Work>
void unlocked(const Work& work) {
  Signals signals;
  bool done;
  {
    nb::gil_scoped_release release;
    done = work(signals.watch());
  }
  if (signals.stopped) throw nb::python_error();
  if (!done) throw std::bad_alloc();
}

void run_forward(const std::string& name, int threads, const Numbers& numbers, int64_t Dv,
                 const Tensor& v, const Tensor& out, const std::array<int64_t, 3>& rows,
                 const std::optional<std::tuple<int64_t, int64_t, double>>& dropout) {
  Problem p = problem(numbers);
  p.Dv = Dv, p.v = view(v), p.out = view(out);
  p.lse = floats(rows[0]), p.m = floats(rows[1]), p.l = floats(rows[2]);
  p.dropout = dropping(dropout);
  const Table& with = chosen(name);
  unlocked([&](const Watch& watch) { return forward(with, p, threads, watch); });
}

void run_backward(const std::string& name, int threads, const Numbers& numbers, int64_t Dv,
                  const std::array<Tensor, 3>& values, const std::array<int64_t, 3>& rows,
                  const std::array<int64_t, 4>& wanted,
                  const std::optional<std::tuple<int64_t, int64_t, double>>& dropout) {
  Problem p = problem(numbers);
  p.Dv = Dv, p.v = view(values[0]), p.out = view(values[1]);
  p.m = floats(rows[0]), p.l = floats(rows[1]);
  p.dropout = dropping(dropout);
  Slopes slopes;
  slopes.dout = view(values[2]);
  slopes.dlse = floats(rows[2]);
  slopes.dq = floats(wanted[0]), slopes.dk = floats(wanted[1]), slopes.dv = floats(wanted[2]);
  slopes.inner = floats(wanted[3]);
  const Table& with = chosen(name);
  unlocked([&](const Watch& watch) { return backward(with, p, slopes, threads, watch); });
}

// As eyeline/backends/questions.py lays them out.
using Asked = std::tuple<int, int64_t, int64_t, std::array<int64_t, 3>, Tensor,
                         std::array<int64_t, 2>, std::array<int64_t, 2>>;

const int64_t* whole(int64_t address) { return reinterpret_cast<const int64_t*>(address); }

Question question(const Asked& asked) {
  const auto& [ask, count, offset, results, factor, edges, cells] = asked;
  Question made;
  made.ask = static_cast<Ask>(ask);
  made.count = count, made.offset = offset;
  made.values = floats(results[0]), made.more = floats(results[1]);
  made.keys = reinterpret_cast<int64_t*>(results[2]);
  made.factor = view(factor);
  made.row_edges = whole(edges[0]), made.key_edges = whole(edges[1]);
  made.row_cells = cells[0], made.key_cells = cells[1];
  return made;
}

void run_reduce(const std::string& name, int threads, const Numbers& numbers,
                const std::array<int64_t, 2>& state, const std::vector<Asked>& asked) {
  const Problem p = problem(numbers);
  std::vector<Question> each;
  for (const Asked& one : asked) each.push_back(question(one));
  Questions questions{each.data(), static_cast<int64_t>(each.size()), floats(state[0]),
                      floats(state[1])};
  const Table& with = chosen(name);
  unlocked([&](const Watch& watch) { return reduce(with, p, questions, threads, watch); });
}

double multiply_adds(const std::string& name, int64_t rounds) {
  const Table& with = chosen(name);
  nb::gil_scoped_release release;
  float result = 0.0f;
  return with.multiply_adds(rounds, &result);
}

float read_floats(const std::string& name, int64_t data, int64_t count, int64_t streams) {
  const Table& with = chosen(name);
  nb::gil_scoped_release release;
  return with.read_floats(reinterpret_cast<const float*>(data), count, streams);
}

std::vector<std::string> names() {
  int count = 0;
  const Table* const* all = tables(&count);
  std::vector<std::string> found;
  for (int i = 0; i < count; ++i) found.emplace_back(all[i]->name);
  return found;
}

std::tuple<int64_t, int64_t, int64_t> cache_sizes() {
  const Caches& found = caches();
  return {found.level1, found.level2, found.level3};
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("tables", names);
  m.def("caches", cache_sizes);
  m.def("multiply_adds", multiply_adds, nb::arg("table"), nb::arg("rounds"));
  m.def("read_floats", read_floats, nb::arg("table"), nb::arg("data"), nb::arg("count"),
        nb::arg("streams"));
  m.def("poison", poison, nb::arg("on"));
  m.def("forward", run_forward, nb::arg("table"), nb::arg("threads"), nb::arg("problem"),
        nb::arg("Dv"), nb::arg("v"), nb::arg("out"), nb::arg("rows"), nb::arg("dropout").none());
  m.def("backward", run_backward, nb::arg("table"), nb::arg("threads"), nb::arg("problem"),
        nb::arg("Dv"), nb::arg("values"), nb::arg("rows"), nb::arg("wanted"),
        nb::arg("dropout").none());
  m.def("reduce", run_reduce, nb::arg("table"), nb::arg("threads"), nb::arg("problem"),
        nb::arg("state"), nb::arg("questions"));
}
