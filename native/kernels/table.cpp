// Compiled once per instruction set, under the name EYELINE_TABLE. All else here is local to the
// object: another one, compiled for more than this processor has, must never lend it a function.
#include <type_traits>

#include "../table.h"
#include "backward.h"
#include "forward.h"
#include "peak.h"
#include "reduce.h"

#define EYELINE_JOIN(a, b) a##b
#define EYELINE_SYMBOL(name) EYELINE_JOIN(eyeline_table_, name)
#define EYELINE_QUOTE(name) #name
#define EYELINE_TEXT(name) EYELINE_QUOTE(name)

extern "C" {
extern const eyeline::Table EYELINE_SYMBOL(EYELINE_TABLE);
const eyeline::Table EYELINE_SYMBOL(EYELINE_TABLE) = {
    EYELINE_TEXT(EYELINE_TABLE),
    Forward::bytes, forward, join,
    Backward::bytes, backward,
    Reduce::bytes, reduce,
    multiply_adds, read_floats};
}
