// torch's tensors as the kernels take them. torch lends a tensor through a table of C functions
// (DLPackExchangeAPI of dlpack.h 1.x): without a call of Python, which would cost more than a small
// attention. Only module.cpp includes this.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "problem.h"

namespace eyeline {

// As dlpack.h lays them out.
struct Lent {
  char* data;
  int32_t device, device_number;
  int32_t dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t offset;

  bool is(int wanted_code, int wanted_bits) const {
    return code == wanted_code && bits == wanted_bits && lanes == 1;
  }
};

struct Exchange {
  uint32_t major, minor;
  const void *older, *allocate, *give, *take;
  int (*lend)(void* tensor, Lent* to);  // 0, or a Python error is set
  const void* stream;
};

// What numbers a tensor must hold.
enum class Holds { numbers, float32, int64, truth };

class Tensors {
 public:
  Tensors() : type_(nanobind::module_::import_("torch").attr("Tensor")) {
    const nanobind::object capsule = type_.attr("__dlpack_c_exchange_api__");
    exchange_ = static_cast<const Exchange*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!exchange_) throw nanobind::python_error();
    if (exchange_->major != 1 || !exchange_->lend)
      throw nanobind::import_error("this torch lends its tensors in another way");
  }

  // What Python handed over as a tensor of up to four dimensions.
  Lent lent(nanobind::handle tensor, Holds holds) const {
    constexpr int cpu = 1;
    if (!PyObject_TypeCheck(tensor.ptr(), reinterpret_cast<PyTypeObject*>(type_.ptr())))
      throw nanobind::type_error("the kernels take tensors of torch");
    Lent found;
    if (exchange_->lend(tensor.ptr(), &found) != 0) {
      PyErr_Clear();
      refuse(tensor);
    }
    found.data += found.offset;
    bool empty = false;
    for (int d = 0; d < found.dimensions; ++d) empty |= found.shape[d] == 0;
    if (found.device != cpu || (!found.data && !empty)) refuse(tensor);
    if (found.dimensions > 4 || !fits(found, holds))
      throw nanobind::value_error("a tensor is not of the shape or type that the kernels take");
    return found;
  }

  // None has no view.
  View view(nanobind::handle tensor, Holds holds) const {
    return tensor.is_none() ? View{} : view(lent(tensor, holds));
  }

  // A dimension of size 1 broadcasts.
  static View view(const Lent& tensor) {
    View made;
    made.data = tensor.data;
    for (int d = 0; d < tensor.dimensions; ++d)
      made.stride[d] = tensor.shape[d] == 1 ? 0 : tensor.strides[d];
    return made;
  }

  static Number number(const Lent& tensor) {
    if (tensor.bits == 32) return Number::float32;
    return tensor.code == float_code ? Number::float16 : Number::bfloat16;
  }

 private:
  static constexpr int int_code = 0, float_code = 2, bfloat_code = 4, bool_code = 6;

  static bool fits(const Lent& t, Holds holds) {
    switch (holds) {
      case Holds::float32: return t.is(float_code, 32);
      case Holds::int64: return t.is(int_code, 64);
      case Holds::truth: return t.is(bool_code, 8);
      case Holds::numbers:
        return t.dimensions == 4 &&
               (t.is(float_code, 32) || t.is(float_code, 16) || t.is(bfloat_code, 16));
    }
    return false;
  }

  [[noreturn]] static void refuse(nanobind::handle tensor) {
    const std::string text = std::string("The native kernels read memory, and a ") +
                             Py_TYPE(tensor.ptr())->tp_name +
                             " has none of its own. Make all tensors of one kind, or name "
                             "backend='tiled'.";
    const nanobind::object error = nanobind::module_::import_("eyeline.errors").attr("BackendError");
    PyErr_SetString(error.ptr(), text.c_str());
    throw nanobind::python_error();
  }

  nanobind::object type_;
  const Exchange* exchange_;
};

}  // namespace eyeline
