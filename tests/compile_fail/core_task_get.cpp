// SPDX-License-Identifier: Apache-2.0
// expect: skein: a task has no get()
#include <skein/core/task.hpp>

skein::task<int> one() { co_return 1; }

int use() { return one().get(); }
