// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/heard_output.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/core/loop.hpp>

#include <algorithm>
#include <utility>

namespace skein::cluster::detail {

SKEIN_INLINE void heard_output::expect(std::uint64_t lease, const std::string& node) {
    if (print_) heard_[lease].node = node;
}

SKEIN_INLINE void heard_output::hear(worker_output m) {
    if (!print_ || is_deaf_) return;
    std::vector<proc::worker_lines> all;
    for (auto& some : m.from) {
        proc::worker_lines out;
        out.worker = events_.name_of(some.lease);
        out.node = m.node_name;
        if (!out.worker.empty()) {
            auto& before = heard_[some.lease];
            before.node = m.node_name;
            out.left_out = some.first > before.next ? some.first - before.next : 0;
            before.next = some.first + some.lines.size();
        }
        out.lines = std::move(some.lines);
        all.push_back(std::move(out));
    }
    start(std::move(all), m.node);
}

SKEIN_INLINE void heard_output::end(std::uint64_t lease, std::uint64_t lines) {
    const auto found = heard_.find(lease);
    if (!print_ || is_deaf_ || (found == heard_.end() && lines == 0)) return;
    proc::worker_lines rest;
    rest.worker = events_.name_of(lease);
    const auto before = found == heard_.end() ? heard_lines{} : found->second;
    heard_.erase(lease);
    all_heard_.set();
    if (lines < before.next || rest.worker.empty()) return;
    rest.node = before.node;
    rest.left_out = lines + 1 - before.next;
    std::vector<proc::worker_lines> all;
    all.push_back(std::move(rest));
    start(std::move(all), 0);
}

SKEIN_INLINE void heard_output::start(std::vector<proc::worker_lines> lines, std::uint64_t node) {
    ++printing_now_;
    printing_.spawn(print(this, std::move(lines), node));
}

SKEIN_INLINE task<void> heard_output::print(heard_output* self,
                                            std::vector<proc::worker_lines> lines,
                                            std::uint64_t node) {
    auto printed = as_result(self->print_(std::move(lines)));
    (void)co_await printed;
    if (node != 0) self->events_.printed(node);
    if (--self->printing_now_ == 0) self->all_printed_.set();
}

SKEIN_INLINE task<void> heard_output::wait_printed(heard_output* self, duration most) {
    const auto until = deadline_after(self->on_loop_.now(), most);
    while (self->printing_now_ != 0 && self->on_loop_.now() < until) {
        self->all_printed_.reset();
        auto printed = self->all_printed_.wait_for(until - self->on_loop_.now());
        co_await printed;
    }
}

SKEIN_INLINE task<void> heard_output::hear_last(heard_output* self, bool waits, duration most) {
    const auto until = deadline_after(self->on_loop_.now(), most);
    const auto is_coming = [](const auto& one) { return !one.second.is_lost; };
    while (waits && self->events_.is_output_coming() && self->on_loop_.now() < until &&
           std::any_of(self->heard_.begin(), self->heard_.end(), is_coming)) {
        self->all_heard_.reset();
        auto heard = self->all_heard_.wait_for(until - self->on_loop_.now());
        co_await heard;
    }
    if (waits) {
        auto printed = wait_printed(self, most);
        co_await printed;
    }
    self->is_deaf_ = true;
    self->printing_.cancel();
    auto ended = as_result(self->printing_.join());
    (void)co_await ended;
}

} // namespace skein::cluster::detail
