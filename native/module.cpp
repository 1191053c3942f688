// The one file that knows Python. Tensors arrive as addresses and strides; whoever calls keeps them
// alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>

#include "caches.h"
#include "forward.h"
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


void run_forward(const std::string& name, int threads, int number,
                 const std::array<int64_t, 7>& sizes, const std::array<Tensor, 4>& main,
                 int64_t lse, double scale, double softcap, const std::array<Tensor, 3>& more,
                 const std::array<int64_t, 4>& places, const std::array<Tensor, 6>& visible,
                 int64_t intervals, std::optional<std::tuple<int64_t, int64_t, double>> dropout) {
  const Table* chosen = table(name.c_str());
  if (!chosen) throw nb::value_error(("no table " + name).c_str());
  Problem p;
  p.N = sizes[0], p.Hq = sizes[1], p.Hk = sizes[2], p.Tq = sizes[3], p.Tk = sizes[4];
  p.D = sizes[5], p.Dv = sizes[6];
  p.number = static_cast<Number>(number);
  p.q = view(main[0]), p.k = view(main[1]), p.v = view(main[2]), p.out = view(main[3]);
  p.lse = reinterpret_cast<float*>(lse);
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
  if (dropout) {
    p.dropout.here = true;
    p.dropout.seed = static_cast<uint64_t>(std::get<0>(*dropout));
    p.dropout.threshold = static_cast<uint64_t>(std::get<1>(*dropout));
    p.dropout.scale = static_cast<float>(std::get<2>(*dropout));
  }
  Signals signals;
  bool done;
  {
    nb::gil_scoped_release release;
    done = forward(*chosen, p, threads, signals.watch());
  }
  if (signals.stopped) throw nb::python_error();
  if (!done) throw std::bad_alloc();
}

double multiply_adds(const std::string& name, int64_t rounds) {
  const Table* chosen = table(name.c_str());
  if (!chosen) throw nb::value_error(("no table " + name).c_str());
  nb::gil_scoped_release release;
  float result;
  return chosen->multiply_adds(rounds, &result);
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
  m.def("poison", poison, nb::arg("on"));
  m.def("forward", run_forward, nb::arg("table"), nb::arg("threads"), nb::arg("number"),
        nb::arg("sizes"), nb::arg("main"), nb::arg("lse"), nb::arg("scale"), nb::arg("softcap"),
        nb::arg("more"), nb::arg("places"), nb::arg("visible"), nb::arg("intervals"),
        nb::arg("dropout").none());
}
