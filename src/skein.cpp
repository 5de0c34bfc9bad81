// SPDX-License-Identifier: Apache-2.0
// The torch-free part in its compiled form as one file, for builds without CMake.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif

#include "core.cpp"
#include "net.cpp"
#include "rt.cpp"
#include "cluster.cpp"
#include "report.cpp"
#include "dist.cpp"
#include "train_torch_free.cpp"
