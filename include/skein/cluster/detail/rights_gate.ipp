// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/rights_gate.hpp.

#include <skein/cluster/rights.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

/// What the keys of a kind are for, and what to do when that is not enough.
struct key_purpose {
    std::string_view may, next;
};

[[nodiscard]] inline key_purpose purpose_of(net::key_kind kind) {
    switch (kind) {
    case net::key_kind::cluster: return {"does all", "ask a head of the same release"};
    case net::key_kind::node: return {"is there for a node's agent", "use the cluster's token"};
    case net::key_kind::attempt:
        return {"drives its own job's workers, ranks and namespaces, and reads that job's state "
                "and lines",
                "do it outside of the job, where the cluster's token is"};
    case net::key_kind::space_server:
        return {"drives the workers of its own namespace", "do it in a program"};
    case net::key_kind::submit:
        return {"submits, stops and reads jobs, and looks at the cluster",
                "use the cluster's token"};
    case net::key_kind::view:
        return {"looks at the cluster and its jobs",
                "use a submit key for jobs (skein token --for submit), else the cluster's token"};
    }
    return {"is of a newer release", "use one release of skein for head, nodes and programs"};
}

/// Whose key a link has, and what is its own.
struct key_holder {
    const key_facts& facts;
    net::key_name key;
    std::uint64_t incarnation;
    std::string_view asked; ///< rights_row::what
    std::string job;        ///< of an attempt

    [[nodiscard]] std::string text() const {
        return job.empty() ? net::to_string(key.kind) : fmt::format("the key of job {}", job);
    }
    [[nodiscard]] error refusal(const std::string& about = {}) const {
        const auto purpose = purpose_of(key.kind);
        return error(errc::permission_denied, fmt::format("{}{} is refused to {}, which {}", asked,
                                                          about, text(), purpose.may))
            .with_hint(std::string(purpose.next));
    }
    /// Names the own job where none is named.
    void own_job_only(std::string& named) const {
        if (named.empty()) named = job;
        if (named != job) throw refusal(fmt::format(" ({})", named));
    }
};

inline void limit(ask_status& m, const key_holder& who) { who.own_job_only(m.job); }
inline void limit(ask_jobs& m, const key_holder& who) { who.own_job_only(m.id); }
inline void limit(follow_job& m, const key_holder& who) { who.own_job_only(m.id); }
inline void limit(ask_log& m, const key_holder& who) { who.own_job_only(m.id); }
inline void limit(ask_sets& m, const key_holder& who) { who.own_job_only(m.job); }
inline void limit(ask_set& m, const key_holder& who) { who.own_job_only(m.job); }
inline void limit(ask_run_piece& m, const key_holder& who) { who.own_job_only(m.job); }
inline void limit(ask_scale& m, const key_holder& who) { who.own_job_only(m.job); }
inline void limit(stop_job& m, const key_holder& who) { who.own_job_only(m.id); }
inline void limit(ask_stop_space& m, const key_holder& who) {
    if (!who.facts.has_begun(who.job, m.space))
        throw who.refusal(fmt::format(" that it has not begun ({})", m.space));
}
/// A driver is what its key says, and none that others have.
inline void limit(driver_hello& m, const key_holder& who) {
    const auto known = who.facts.key_of(who.incarnation);
    if (known && *known != who.key) throw who.refusal(" that another one runs");
    if (who.key.kind == net::key_kind::attempt) {
        who.own_job_only(m.job);
        if (!m.space.empty())
            throw who.refusal(fmt::format(" as the space server of namespace {}", m.space));
        return;
    }
    const auto own = who.facts.space_of(who.key.number);
    if (who.incarnation != who.key.number || m.space.empty() || (!own.empty() && own != m.space))
        throw who.refusal(fmt::format(" for namespace {}", m.space));
}

template <class M>
concept limited = requires(M& m, const key_holder& who) { limit(m, who); };

/// The message as far as the key reaches with it.
template <class M>
[[nodiscard]] byte_buffer limited_body(byte_span body, const key_holder& who) {
    if constexpr (limited<M>) {
        auto m = net::detail::decode_message<M>(body, "message");
        limit(m, who);
        return wire::encode(m);
    } else {
        throw who.refusal(); // the table says "own" of what nobody can limit: see below
    }
}

/// Finds the type of a message by its number.
template <class... Messages>
[[nodiscard]] byte_buffer limited_by_number(net::message_table<Messages...>, std::uint16_t number,
                                            byte_span body, const key_holder& who) {
    constexpr auto is_limited = [](std::uint16_t which, bool has_limit) {
        const auto row = *rights_of(which);
        const auto is_own = [](reach r) { return r == reach::own_job || r == reach::own_space; };
        return has_limit || std::none_of(row.by_kind.begin(), row.by_kind.end(), is_own);
    };
    static_assert(
        (is_limited(Messages::number, limited<Messages>) && ...),
        "a message of which a key may send what is about its own job or namespace needs a "
        "limit() in rights_gate.ipp");
    byte_buffer out;
    (void)((number == Messages::number && (out = limited_body<Messages>(body, who), true)) || ...);
    return out;
}

SKEIN_INLINE std::optional<byte_buffer> rights_gate::check(std::uint16_t number,
                                                           byte_span body) const {
    if (key_.kind == net::key_kind::cluster) return std::nullopt;
    if (auto shut = why_shut_out(*facts_, key_)) throw error(std::move(*shut));
    const auto* const row = rights_of(number);
    key_holder who{*facts_,
                   key_,
                   incarnation_,
                   row != nullptr ? row->what : std::string_view("a message of another release"),
                   {}};
    if (key_.kind == net::key_kind::attempt) who.job = facts_->job_of_attempt(key_.number);
    switch (reach_of(number, key_.kind)) {
    case reach::anything:
    case reach::own_driver: return std::nullopt;
    case reach::own_job:
    case reach::own_space: return limited_by_number(cluster_messages(), number, body, who);
    case reach::nothing: break;
    }
    throw who.refusal();
}

SKEIN_INLINE void keep_programs_of(cluster_status& all, const std::string& job) {
    if (job.empty()) return;
    std::erase_if(all.jobs, [&](const job_status& one) { return one.job != job; });
    all.past.clear();
}

SKEIN_INLINE std::optional<error> why_shut_out(const key_facts& facts, const net::key_name& key) {
    if (!net::is_known(key.kind))
        return error(errc::permission_denied,
                     fmt::format("{} is not known to this head", net::to_string(key.kind)))
            .with_hint("use one release of skein for head, nodes and programs");
    if (key.kind != net::key_kind::attempt || !facts.job_of_attempt(key.number).empty())
        return std::nullopt;
    return error(errc::permission_denied, fmt::format("this key opens nothing any more: {}",
                                                      facts.fate_of_attempt(key.number)))
        .with_hint("an attempt's key ends with it; what goes on after a job needs the cluster's "
                   "token");
}

} // namespace skein::cluster::detail
