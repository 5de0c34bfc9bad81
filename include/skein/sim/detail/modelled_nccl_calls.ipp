// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls of modelled collectives: groups, who waits for whom, values.

#include <skein/core/config.hpp>
#include <skein/dist/reduce.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/core.h>

namespace skein::sim::detail {

SKEIN_INLINE const char* to_string(nccl_kind kind) noexcept {
    switch (kind) {
    case nccl_kind::all_reduce: return "all_reduce";
    case nccl_kind::reduce_scatter: return "reduce_scatter";
    case nccl_kind::reduce: return "reduce";
    case nccl_kind::broadcast: return "broadcast";
    case nccl_kind::all_gather: return "all_gather";
    case nccl_kind::send: return "send";
    case nccl_kind::recv: return "recv";
    }
    return "?";
}

SKEIN_INLINE dist::dtype dtype_of(dist::nccl_type type) noexcept {
    switch (type) {
    case dist::nccl_type::f32: return dist::dtype::f32;
    case dist::nccl_type::bf16: return dist::dtype::bf16;
    case dist::nccl_type::f64: return dist::dtype::f64;
    case dist::nccl_type::i64: return dist::dtype::i64;
    case dist::nccl_type::u8: return dist::dtype::u8;
    case dist::nccl_type::f16: return dist::dtype::f16;
    }
    return dist::dtype::u8;
}

SKEIN_INLINE std::size_t nccl_call::in_bytes(int ranks, int rank) const {
    const std::size_t one = count * dist::size_of(dtype_of(type));
    switch (kind) {
    case nccl_kind::reduce_scatter: return one * static_cast<std::size_t>(ranks);
    case nccl_kind::broadcast: return rank == peer ? one : 0;
    case nccl_kind::recv: return 0;
    default: return one;
    }
}
SKEIN_INLINE std::size_t nccl_call::out_bytes(int ranks, int rank) const {
    const std::size_t one = count * dist::size_of(dtype_of(type));
    switch (kind) {
    case nccl_kind::all_gather: return one * static_cast<std::size_t>(ranks);
    case nccl_kind::reduce: return rank == peer ? one : 0;
    case nccl_kind::send: return 0;
    default: return one;
    }
}

SKEIN_INLINE void modelled_nccl::group_start() { ++groups_[std::this_thread::get_id()].depth; }

SKEIN_INLINE dist::nccl_result modelled_nccl::group_end() {
    open_group& group = groups_[std::this_thread::get_id()];
    if (group.depth == 0)
        return refuse(nullptr, "a group ends that was not begun", dist::nccl_result::invalid_usage);
    if (--group.depth > 0) return dist::nccl_result::success;
    const auto ended = std::exchange(group, {});
    for (const auto handle : ended.aborts) abort_now(handle);
    return launch(ended.made);
}

SKEIN_INLINE dist::nccl_result modelled_nccl::call(dist::nccl_comm handle, dist::cuda_stream stream,
                                                   nccl_call what) {
    const auto comm = find(handle);
    if (!comm) return refuse(nullptr, "a call on a communicator that is not there");
    const int on = streams_.index_of(stream);
    if (on < 0 || streams_.device_of(on) != comm->device)
        return refuse(comm.get(), "a call on a stream that is not of the communicator's device");
    if (comm->state == dist::nccl_result::in_progress)
        return refuse(comm.get(), fmt::format("{} while the call before it is in progress",
                                              to_string(what.kind)));
    if (comm->state != dist::nccl_result::success) return comm->state;
    const auto ranks = static_cast<int>(comm->clique->ranks.size());
    if (what.peer < 0 || what.peer >= ranks)
        return refuse(comm.get(), fmt::format("{} with rank {}", to_string(what.kind), what.peer));
    if (what.kind == nccl_kind::send)
        what.number = comm->sent[what.peer]++;
    else if (what.kind == nccl_kind::recv)
        what.number = comm->received[what.peer]++;
    else
        what.number = comm->collectives++;

    open_group& group = groups_[std::this_thread::get_id()];
    std::vector<std::shared_ptr<nccl_unit>> alone;
    auto& made = group.depth > 0 ? group.made : alone;
    auto found = std::find_if(made.begin(), made.end(),
                              [&](const auto& unit) { return unit->of == comm && unit->on == on; });
    if (found == made.end())
        found = made.insert(made.end(), std::make_shared<nccl_unit>(*this, comm, on));
    (*found)->calls.push_back(what);
    return group.depth > 0 ? dist::nccl_result::success : launch(std::move(alone));
}

SKEIN_INLINE dist::nccl_result modelled_nccl::launch(std::vector<std::shared_ptr<nccl_unit>> made) {
    auto outcome = dist::nccl_result::success;
    for (const auto& unit : made) {
        if (unit->of->is_aborted) continue;
        const bool is_late = !unit->of->is_blocking && streams_.random().below(2) == 0;
        if (is_late || !unit->of->late.empty()) {
            unit->of->late.push_back(unit);
            outcome = unit->of->state = dist::nccl_result::in_progress;
        } else {
            put_on_stream(unit);
        }
    }
    return outcome;
}

SKEIN_INLINE std::vector<joined_call> modelled_nccl::partners(const nccl_unit& unit,
                                                              const nccl_call& call) const {
    const modelled_clique& clique = *unit.of->clique;
    const auto part_of = [&](nccl_unit* of, auto fits) -> joined_call {
        if (of == nullptr || of->is_aborted) return {};
        const auto found = std::find_if(of->calls.begin(), of->calls.end(), fits);
        return found == of->calls.end() ? joined_call{} : joined_call{of, &*found};
    };
    std::vector<joined_call> found;
    if (call.kind == nccl_kind::send || call.kind == nccl_kind::recv) {
        const bool sends = call.kind == nccl_kind::send;
        const int from = sends ? unit.of->rank : call.peer, to = sends ? call.peer : unit.of->rank;
        const auto& pair = clique.messages.at({from, to, call.number});
        const auto is = [&](nccl_kind kind, int peer) {
            return [kind, peer, number = call.number](const nccl_call& c) {
                return c.kind == kind && c.peer == peer && c.number == number;
            };
        };
        found.push_back(part_of(pair.first.get(), is(nccl_kind::send, to)));
        found.push_back(part_of(pair.second.get(), is(nccl_kind::recv, from)));
        return found;
    }
    for (const auto& of : clique.collectives.at(call.number)) {
        found.push_back(part_of(of.get(), [&](const nccl_call& c) {
            return c.kind != nccl_kind::send && c.kind != nccl_kind::recv &&
                   c.number == call.number;
        }));
    }
    return found;
}

SKEIN_INLINE bool modelled_nccl::collect(nccl_unit& unit, units& all) const {
    if (std::find(all.begin(), all.end(), &unit) != all.end()) return true;
    const auto trouble = troubles_.find(unit.of->device);
    if (unit.of->clique->hangs || (trouble != troubles_.end() && trouble->second.hangs))
        return false;
    if (!streams_.is_head(unit.on, &unit)) return false;
    all.push_back(&unit);
    for (const nccl_call& c : unit.calls) {
        for (const joined_call& other : partners(unit, c)) {
            if (other.unit == nullptr || !collect(*other.unit, all)) return false;
        }
    }
    return true;
}

SKEIN_INLINE bool nccl_unit::can_run() {
    if (is_aborted) return true;
    std::vector<nccl_unit*> all;
    return model_.collect(*this, all);
}

SKEIN_INLINE void nccl_unit::run() {
    std::vector<nccl_unit*> all{this};
    if (!is_aborted) {
        all.clear();
        (void)model_.collect(*this, all);
    }
    model_.run_together(all);
}

/// What ranks have to agree on; the library does not look.
SKEIN_INLINE bool are_unlike(const std::vector<joined_call>& calls) {
    const nccl_call& first = *calls.front().call;
    return std::any_of(calls.begin(), calls.end(), [&](const joined_call& c) {
        const nccl_call& other = *c.call;
        const bool is_message = first.kind == nccl_kind::send;
        return other.count != first.count || other.type != first.type ||
               (!is_message &&
                (other.kind != first.kind || other.op != first.op || other.peer != first.peer));
    });
}

/// The reduction as the library does it: halves are rounded at each step.
SKEIN_INLINE std::vector<std::byte> reduced(const std::vector<std::vector<std::byte>>& of,
                                            const nccl_call& call, std::size_t elements) {
    const auto op = call.op == dist::nccl_op::sum   ? dist::reduce_op::sum
                    : call.op == dist::nccl_op::max ? dist::reduce_op::max
                                                    : dist::reduce_op::min;
    std::vector<std::byte> sum = of.front();
    for (std::size_t r = 1; r < of.size(); ++r)
        dist::reduce(sum.data(), sum.data(), of[r].data(), elements, dtype_of(call.type), op, 1);
    return sum;
}

SKEIN_INLINE void modelled_nccl::run_calls(const modelled_clique& clique,
                                           const std::vector<joined_call>& calls) {
    const nccl_call& first = *calls.front().call;
    const auto ranks = static_cast<int>(clique.ranks.size());
    if (are_unlike(calls)) { // it did not hang: then numbers are wrong
        for (const joined_call& c : calls) {
            if (c.call->out != nullptr)
                std::memset(c.call->out, 0x7b, c.call->out_bytes(ranks, c.unit->of->rank));
        }
        return;
    }
    std::vector<std::vector<std::byte>> brought;
    for (const joined_call& c : calls) {
        const auto* const begin = static_cast<const std::byte*>(c.call->in);
        const std::size_t bytes = c.call->in_bytes(ranks, c.unit->of->rank);
        brought.emplace_back(begin, begin + bytes);
    }
    std::vector<std::byte> all;
    switch (first.kind) {
    case nccl_kind::all_reduce:
    case nccl_kind::reduce: all = reduced(brought, first, first.count); break;
    case nccl_kind::reduce_scatter:
        all = reduced(brought, first, first.count * static_cast<std::size_t>(ranks));
        break;
    case nccl_kind::all_gather:
        for (const auto& part : brought) all.insert(all.end(), part.begin(), part.end());
        break;
    case nccl_kind::broadcast: all = brought[static_cast<std::size_t>(first.peer)]; break;
    case nccl_kind::send:
    case nccl_kind::recv: all = brought.front(); break;
    }
    for (const joined_call& c : calls) {
        const int rank = c.unit->of->rank;
        const std::size_t bytes = c.call->out_bytes(ranks, rank);
        const std::size_t from =
            first.kind == nccl_kind::reduce_scatter ? bytes * static_cast<std::size_t>(rank) : 0;
        if (bytes > 0) std::memcpy(c.call->out, all.data() + from, bytes);
    }
}

SKEIN_INLINE void modelled_nccl::run_together(const units& all) {
    std::vector<const nccl_call*> done;
    for (nccl_unit* const unit : all) { // unlike calls: some hang
        if (unit->is_aborted) continue;
        for (const nccl_call& c : unit->calls) {
            const auto calls = partners(*unit, c);
            const bool kinds_differ = std::any_of(calls.begin(), calls.end(), [&](const auto& o) {
                return o.call->kind != c.kind && c.kind != nccl_kind::send &&
                       c.kind != nccl_kind::recv;
            });
            if (!are_unlike(calls)) continue;
            if (!kinds_differ && streams_.random().below(2) == 0) continue;
            unit->of->clique->hangs = true;
            return;
        }
    }
    for (nccl_unit* const unit : all) {
        if (unit->is_aborted) continue;
        for (const nccl_call& c : unit->calls) {
            if (std::find(done.begin(), done.end(), &c) != done.end()) continue;
            const auto calls = partners(*unit, c);
            run_calls(*unit->of->clique, calls);
            for (const joined_call& of : calls) done.push_back(of.call);
        }
    }
    std::vector<std::shared_ptr<nccl_unit>> alive; // until the end of this
    for (nccl_unit* const unit : all) {
        auto& its = unit->of->units;
        const auto own =
            std::find_if(its.begin(), its.end(), [&](const auto& u) { return u.get() == unit; });
        if (own != its.end()) {
            alive.push_back(*own);
            its.erase(own);
        }
        modelled_clique& clique = *unit->of->clique;
        for (const nccl_call& c : unit->calls) {
            if (unit->is_aborted) break; // others still look for it
            if (c.kind == nccl_kind::send)
                clique.messages.erase({unit->of->rank, c.peer, c.number});
            else if (c.kind == nccl_kind::recv)
                clique.messages.erase({c.peer, unit->of->rank, c.number});
            else
                clique.collectives.erase(c.number);
        }
        unit->is_done = true;
        streams_.pop(unit->on);
    }
}

} // namespace skein::sim::detail
