// What Python calls. With tensor.h the only place that knows Python.
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
#include "tensor.h"

namespace nb = nanobind;
using namespace eyeline;

namespace {

// A tensor or None. The call holds it, and so its memory.
using Tensor = nb::object;

const Tensors* tensors = nullptr;  // for as long as there is a process

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
using Masks = std::array<Tensor, 6>;
using Asking = std::tuple<Tensor, Tensor, double, double, std::array<Tensor, 3>,
                          std::array<int64_t, 3>, Tensor, std::optional<Masks>>;

Visible visible(const Masks& masks) {
  const auto& [starts, stops, keep, q_ids, k_ids, dense] = masks;
  Visible made;
  if (!starts.is_none()) {
    const Lent lent = tensors->lent(starts, Holds::int64);
    made.starts = Tensors::view(lent), made.stops = tensors->view(stops, Holds::int64);
    made.intervals = lent.shape[3];
  }
  made.keep = tensors->view(keep, Holds::truth);
  made.q_ids = tensors->view(q_ids, Holds::int64), made.k_ids = tensors->view(k_ids, Holds::int64);
  made.dense = tensors->view(dense, Holds::truth);
  return made;
}

// Of the problem's own type, as all that is [N, H, T, size].
Lent like(const Problem& p, const Tensor& tensor) {
  const Lent found = tensors->lent(tensor, Holds::numbers);
  if (Tensors::number(found) != p.number) throw nb::value_error("tensors of several types");
  return found;
}

// Values come with attention, not with questions.
Problem problem(const Asking& asking, const Tensor& v = nb::none()) {
  const auto& [q, k, scale, softcap, more, places, positions, masks] = asking;
  const Lent queries = tensors->lent(q, Holds::numbers);
  Problem p;
  p.number = Tensors::number(queries);
  const Lent keys = like(p, k);
  p.N = queries.shape[0], p.Hq = queries.shape[1], p.Tq = queries.shape[2], p.D = queries.shape[3];
  p.Hk = keys.shape[1], p.Tk = keys.shape[2];
  p.q = Tensors::view(queries), p.k = Tensors::view(keys);
  p.scale = static_cast<float>(scale);
  p.softcap = static_cast<float>(softcap);
  p.bias = tensors->view(more[0], Holds::float32);
  p.relative = tensors->view(more[1], Holds::float32);
  p.sinks = tensors->view(more[2], Holds::float32);
  p.origin = places[0], p.first_position = places[1], p.position_step = places[2];
  const View picked = tensors->view(positions, Holds::int64);
  p.positions = reinterpret_cast<const int64_t*>(picked.data);
  if (masks) p.visible = visible(*masks);
  if (!v.is_none()) {
    const Lent values = like(p, v);
    p.Dv = values.shape[3], p.v = Tensors::view(values);
  }
  p.blocks = blocks(caches(), p.D, p.Dv);
  p.backward = backward_blocks(caches(), p.D);
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

// rows [3, N, Hq, Tq]: lse, m and l
void run_forward(const std::string& name, int threads, const Asking& asking, const Tensor& v,
                 const Tensor& out, const Tensor& rows,
                 const std::optional<std::tuple<int64_t, int64_t, double>>& dropout) {
  Problem p = problem(asking, v);
  p.out = Tensors::view(like(p, out));
  p.lse = tensors->view(rows, Holds::float32).at<float>(0);
  p.m = p.lse + p.N * p.Hq * p.Tq, p.l = p.m + p.N * p.Hq * p.Tq;
  p.dropout = dropping(dropout);
  const Table& with = chosen(name);
  unlocked([&](const Watch& watch) { return forward(with, p, threads, watch); });
}

void run_backward(const std::string& name, int threads, const Asking& asking,
                  const std::array<Tensor, 3>& values, const std::array<int64_t, 3>& rows,
                  const std::array<int64_t, 4>& wanted,
                  const std::optional<std::tuple<int64_t, int64_t, double>>& dropout) {
  Problem p = problem(asking, values[0]);
  if (!values[1].is_none()) p.out = Tensors::view(like(p, values[1]));
  p.m = floats(rows[0]), p.l = floats(rows[1]);
  p.dropout = dropping(dropout);
  Slopes slopes;
  if (!values[2].is_none()) slopes.dout = Tensors::view(like(p, values[2]));
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
  made.factor = tensors->view(factor, Holds::float32);
  made.row_edges = whole(edges[0]), made.key_edges = whole(edges[1]);
  made.row_cells = cells[0], made.key_cells = cells[1];
  return made;
}

void run_reduce(const std::string& name, int threads, const Asking& asking,
                const std::array<int64_t, 2>& state, const std::vector<Asked>& asked) {
  const Problem p = problem(asking);
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
  tensors = new Tensors;
  m.def("tables", names);
  m.def("caches", cache_sizes);
  m.def("multiply_adds", multiply_adds, nb::arg("table"), nb::arg("rounds"));
  m.def("read_floats", read_floats, nb::arg("table"), nb::arg("data"), nb::arg("count"),
        nb::arg("streams"));
  m.def("poison", poison, nb::arg("on"));
  m.def("forward", run_forward, nb::arg("table"), nb::arg("threads"), nb::arg("problem"),
        nb::arg("v"), nb::arg("out"), nb::arg("rows"), nb::arg("dropout").none());
  m.def("backward", run_backward, nb::arg("table"), nb::arg("threads"), nb::arg("problem"),
        nb::arg("values"), nb::arg("rows"), nb::arg("wanted"),
        nb::arg("dropout").none());
  m.def("reduce", run_reduce, nb::arg("table"), nb::arg("threads"), nb::arg("problem"),
        nb::arg("state"), nb::arg("questions"));
}
