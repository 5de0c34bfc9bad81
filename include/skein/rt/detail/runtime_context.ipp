// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of rt/runtime_context.hpp.

#include <skein/core/error.hpp>
#include <skein/core/loop.hpp>
#include <skein/rt/runtime.hpp>

#include <algorithm>

namespace skein {

SKEIN_INLINE runtime_info runtime_context() {
    const auto* here = rt::runtime::try_current();
    if (here == nullptr)
        throw error(errc::not_found, "no skein runtime on this thread")
            .with_hint("ask inside skein::run, in a task or in a function that runs on a worker");
    runtime_info out;
    out.process = here->name().name;
    out.host = here->name().host;
    out.pid = here->name().pid;
    const auto* context = rt::detail::call_context::current();
    if (context == nullptr || !context->is_call()) return out;
    out.function = context->fn->name;
    out.call = context->who.id;
    out.parent = context->who.parent;
    out.trace = context->who.trace;
    out.actor = context->actor;
    if (context->who.until != time_point::max())
        out.time_left =
            std::max(duration::zero(), context->who.until - loop::current().exact_now());
    return out;
}

} // namespace skein
