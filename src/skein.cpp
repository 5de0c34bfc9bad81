// SPDX-License-Identifier: Apache-2.0
// The torch-free part in its compiled form as one file, for builds without CMake.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif
#if defined(__GNUC__) && !defined(__clang__)
// g++ takes a coroutine's frame for a type of the file that is compiled, and the .ipp for a header of many.
#pragma GCC diagnostic ignored "-Wsubobject-linkage"
#endif

#include "core.cpp"
#include "wire.cpp"
#include "goodput.cpp"
#include "net.cpp"
#include "sched.cpp"
#include "proc.cpp"
#include "objects.cpp"
#include "report.cpp"
#include "rt.cpp"
#include "spmd.cpp"
#include "cluster.cpp"
#include "program.cpp"
#include "data.cpp"
#include "metrics.cpp"
#include "dist.cpp"
#include "train_torch_free.cpp"
