// SPDX-License-Identifier: Apache-2.0
// The part that needs LibTorch, beside skein.cpp, for builds without CMake.
// Written by scripts/amalgamate.py from include/.
#if !defined(SKEIN_COMPILED)
#error "skein: src/ is the compiled form: compile it, and all that uses it, with -DSKEIN_COMPILED"
#endif

#include "train.cpp"
