// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bodies of cluster/detail/head_memory.hpp.

#include <skein/cluster/detail/cluster_link.hpp>
#include <skein/cluster/detail/drain_messages.hpp>
#include <skein/core/backoff.hpp>
#include <skein/core/error.hpp>
#include <skein/core/log.hpp>
#include <skein/core/timeout.hpp>
#include <skein/net/offload.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace skein::cluster::detail {

inline constexpr duration first_retry = std::chrono::seconds(1);
inline constexpr duration longest_retry = std::chrono::seconds(30);
inline constexpr duration look_every = std::chrono::seconds(10); ///< whether the log is there

template <class R>
log_record head_memory::record_of(const R& r) {
    return {static_cast<std::uint16_t>(R::kind), wire::encode(r)};
}

SKEIN_INLINE std::string cut_text(std::string text) {
    if (text.size() > head_memory::most_text) text.resize(head_memory::most_text);
    return text;
}

/// The wall clock is for people; nothing is decided by it but when a node is forgotten.
SKEIN_INLINE std::int64_t head_memory::unix_now() {
    const auto now = std::chrono::duration_cast<std::chrono::seconds>(loop_.wall());
    return std::max<std::int64_t>(now.count(), 1);
}

// ---- the log ------------------------------------------------------------------------------------

SKEIN_INLINE void head_memory::apply(const log_record& r) {
    const auto as = [&](auto into) {
        if (const auto done = wire::decode(r.body, into); !done)
            throw error(errc::not_supported,
                        fmt::format("not supported: a record of kind {} in {}: {}", r.kind,
                                    log_->path(), done.error().text()))
                .with_hint("another release of skein has written it: start that one, or name "
                           "another folder with --state");
        apply(std::move(into));
    };
    switch (static_cast<record_kind>(r.kind)) {
    case record_kind::started: return as(started_record());
    case record_kind::node: return as(node_record());
    case record_kind::node_forgotten: return as(node_forgotten_record());
    case record_kind::driver: return as(driver_record());
    case record_kind::job: return as(job_record());
    case record_kind::job_forgotten: return as(job_forgotten_record());
    }
    throw error(errc::not_supported,
                fmt::format("not supported: {} has a record of kind {}, which this release does "
                            "not know",
                            log_->path(), r.kind))
        .with_hint("a newer release of skein has written it: start that one, or name another "
                   "folder with --state");
}

SKEIN_INLINE void head_memory::apply(node_record r) {
    auto name = r.name;
    nodes_.insert_or_assign(std::move(name), std::move(r));
}

SKEIN_INLINE void head_memory::apply(driver_record r) {
    if (r.ended == 0) {
        const auto driver = r.driver;
        std::erase_if(past_, [&](const auto& one) { return one.driver == driver; });
        drivers_.insert_or_assign(driver, std::move(r));
        return;
    }
    drivers_.erase(r.driver);
    past_.push_back(std::move(r));
    if (past_.size() > most_past_drivers) past_.pop_front();
}

SKEIN_INLINE void head_memory::apply(const job_forgotten_record& r) {
    jobs_.erase(r.id);
    if (!are_forgotten_.insert(r.id).second) return;
    forgotten_.push_back(r.id);
    if (forgotten_.size() <= most_forgotten) return;
    are_forgotten_.erase(forgotten_.front());
    forgotten_.pop_front();
}

SKEIN_INLINE std::vector<log_record> head_memory::everything() const {
    std::vector<log_record> out;
    out.push_back(record_of(start_));
    for (const auto& [name, n] : nodes_) out.push_back(record_of(n));
    for (const auto& j : past_) out.push_back(record_of(j));
    for (const auto& [driver, j] : drivers_) out.push_back(record_of(j));
    for (const auto& id : forgotten_) out.push_back(record_of(job_forgotten_record{id}));
    for (const auto& [id, j] : jobs_) out.push_back(record_of(j));
    return out;
}

SKEIN_INLINE void head_memory::open(std::shared_ptr<head_log> log, const net::token& secret,
                                    random_source& random) {
    log_ = std::move(log);
    const auto records = log_->open();
    if (!records) throw records.error();
    if (!log_->set_aside().empty())
        logging::warn("head", "the state is lost; nodes and drivers tell what there is",
                      {{"why", log_->set_aside()}});
    if (!log_->cut_off().empty()) // of a crash, most often: nobody was told that it is durable
        logging::warn("head", "the last record of the state is left out: it was not whole",
                      {{"why", log_->cut_off()}});
    const auto token = secret.empty() ? std::string("none") : secret.fingerprint();
    for (const auto& r : *records) {
        apply(r);
        if (start_.state == 0 || start_.token != token)
            throw error(errc::mismatch,
                        fmt::format("state folder {} is that of a cluster with another token: "
                                    "fingerprint {}, ours is {}",
                                    log_->folder(), start_.token, token))
                .with_hint("name another folder with --state, or give the head that token");
    }
    while (start_.state == 0) start_.state = random.next();
    ++start_.generation;
    start_.token = token;
    const auto now = unix_now();
    for (auto& [name, n] : nodes_)
        if (n.gone_since == 0) n.gone_since = now;
    last_ = 1;
    const auto begun = log_->replace(everything());
    // What can be read and not be written (a disk that is full, or read-only by now) keeps no head
    // from starting: it says so. Where nothing can be read either, the folder is a wrong one.
    const bool is_of_disk =
        !begun && (begun.error().code() == errc::disk_full || begun.error().code() == errc::io);
    if (!begun && !is_of_disk && records->empty())
        throw error(begun.error().code(), fmt::format("state folder {} cannot be written: {}",
                                                      log_->folder(), begun.error().text()))
            .with_hint("give this user a folder of its own with --state, or mend this one");
    wrote(begun, last_);
}

template <class R>
void head_memory::note(const R& r) {
    if (log_ == nullptr) return;
    ++last_;
    if (!all_anew_) unwritten_.push_back(record_of(r));
    if (unwritten_.size() > most_unwritten) { // a write hangs
        all_anew_ = true;
        unwritten_.clear();
    }
    changed_.wake_all();
}

/// One write has ended. What failed is written anew, with all the rest.
SKEIN_INLINE void head_memory::wrote(const result<void>& done, std::uint64_t upto) {
    tried_ = upto;
    if (done) {
        durable_ = upto;
        if (!std::exchange(begun_, true) && on_begun) on_begun();
        if (!trouble_.empty())
            logging::info("head", "the state is written again", {{"file", log_->path()}});
        trouble_.clear();
    } else {
        all_anew_ = true;
        unwritten_.clear();
        const bool full = done.error().code() == errc::disk_full;
        const bool bounded = done.error().code() == errc::too_large;
        auto why = fmt::format("{} cannot be written: {}", log_->path(), done.error().text());
        if (why != trouble_)
            logging::warn("head", "the state is not durable",
                          {{"why", why},
                           {"until", full      ? "there is room on that disk: free some"
                                     : bounded ? "the head is started again with a higher limit"
                                               : "that disk works again"}});
        trouble_ = std::move(why);
    }
    written_.wake_all();
}

SKEIN_INLINE task<void> wait_for_change(wait_queue* q) {
    auto turn = q->wait();
    co_await turn;
}

SKEIN_INLINE void head_memory::was_removed(const error& why) {
    logging::warn("head", "the state is written anew", {{"why", why.what()}});
    all_anew_ = true;
    unwritten_.clear();
}

/// Returns when something is to be written, and now and then looks whether the log is still there.
SKEIN_INLINE task<void> head_memory::wait_for_news(head_memory* self) {
    const auto until = deadline_after(self->loop_.now(), look_every);
    auto waiting = as_result(with_deadline(wait_for_change(&self->changed_), until));
    const auto woken = co_await waiting;
    if (!woken && woken.error().code() != errc::timeout) throw woken.error();
    if (self->durable_ != self->last_ || self->closing_ || self->loop_.now() < until) co_return;
    auto look = [log = self->log_] { return log->look(); };
    auto looking = net::offload(std::move(look));
    const auto there = co_await looking;
    if (there) co_return;
    ++self->last_; // all of it is to be written
    if (there.error().code() == errc::not_found)
        self->was_removed(there.error());
    else
        self->wrote(there, self->last_);
}

SKEIN_INLINE task<void> head_memory::keep(head_memory* self) {
    if (self->log_ == nullptr) co_return;
    backoff pauses(first_retry, longest_retry);
    for (;;) {
        if (self->durable_ == self->last_) {
            if (self->closing_) co_return;
            auto waiting = wait_for_news(self);
            co_await waiting;
            continue;
        }
        const auto upto = self->last_;
        const bool anew = self->all_anew_ || self->log_->wants_replacing();
        auto records = anew ? self->everything() : std::move(self->unwritten_);
        self->unwritten_.clear();
        self->all_anew_ = false;
        auto work = [log = self->log_, records = std::move(records), anew] {
            return anew ? log->replace(records) : log->append(records);
        };
        auto writing = net::offload(std::move(work));
        const auto done = co_await writing;
        if (!done && !anew && done.error().code() == errc::not_found) {
            self->was_removed(done.error());
            continue;
        }
        self->wrote(done, upto);
        if (done) {
            pauses.reset();
            continue;
        }
        if (self->closing_) co_return;
        const auto until = deadline_after(self->loop_.now(), pauses.next());
        while (!self->closing_ && self->loop_.now() < until) {
            auto woken = as_result(with_deadline(wait_for_change(&self->changed_), until));
            const auto early = co_await woken;
            if (!early && early.error().code() != errc::timeout) throw early.error();
        }
    }
}

SKEIN_INLINE void head_memory::close() noexcept {
    closing_ = true;
    changed_.wake_all();
}

SKEIN_INLINE task<std::string> head_memory::kept_of(head_memory* self) {
    if (self->log_ == nullptr) co_return std::string();
    const auto mine = self->last_;
    while (self->durable_ < mine) {
        if (self->tried_ >= mine || (!self->trouble_.empty() && self->all_anew_))
            co_return self->trouble_;
        auto written = wait_for_change(&self->written_);
        co_await written;
    }
    co_return std::string();
}

// ---- nodes --------------------------------------------------------------------------------------

SKEIN_INLINE const node_record* head_memory::find_node(const std::string& name) const {
    const auto found = nodes_.find(name);
    return found == nodes_.end() ? nullptr : &found->second;
}

SKEIN_INLINE void head_memory::node_came(node_record n) {
    n.left = false;
    n.gone_since = 0;
    missing_since_.erase(n.name);
    if (const auto* const known = find_node(n.name); known != nullptr && n.draining) {
        n.drained_by = known->drained_by;
        n.drain_force = known->drain_force;
        n.drain_ms = known->drain_ms;
    }
    n.resources = n.resources.size() > most_offers ? "" : n.resources;
    std::size_t labels = 0;
    for (const auto& l : n.labels) labels += l.size();
    if (labels > most_offers || n.labels.size() > most_offers / 16) n.labels.clear();
    note(n);
    apply(std::move(n));
}

SKEIN_INLINE void head_memory::node_went(const std::string& name, bool left) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end()) return;
    auto& n = found->second;
    if (left && !n.draining) return forget_node(name);
    n.left = left;
    n.gone_since = unix_now();
    missing_since_[name] = loop_.exact_now();
    note(n);
    const auto is_gone = [](const auto& one) { return one.second.gone_since != 0; };
    if (static_cast<std::size_t>(std::count_if(nodes_.begin(), nodes_.end(), is_gone)) <=
        most_gone_nodes)
        return;
    const auto goes_before = [](const node_record& a, const node_record& b) {
        return a.draining != b.draining ? b.draining : a.gone_since < b.gone_since;
    };
    auto oldest = found;
    for (auto at = nodes_.begin(); at != nodes_.end(); ++at)
        if (is_gone(*at) && goes_before(at->second, oldest->second)) oldest = at;
    forget_node(std::string(oldest->first));
}

/// The moment is by the wall clock, which may be before 1970 as well: the length is not made from it.
SKEIN_INLINE void head_memory::node_drains(const std::string& name, bool on, std::int64_t within_ms,
                                           bool force) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end()) return;
    auto& n = found->second;
    const bool has_deadline = on && within_ms >= 0;
    const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(loop_.wall()).count();
    n.draining = on; // one that has left was kept for that alone, see look()
    n.drain_force = on && force;
    n.drain_ms = has_deadline ? std::min(within_ms, longest_drain_ms) : 0;
    n.drained_by = has_deadline ? std::max<std::int64_t>(now + n.drain_ms, 1) : 0;
    missing_since_[name] = loop_.exact_now();
    note(n);
}

SKEIN_INLINE void head_memory::forget_node(const std::string& name) {
    const node_forgotten_record r{name};
    note(r);
    apply(r);
}

SKEIN_INLINE std::vector<missing_node> head_memory::missing() const {
    std::vector<missing_node> out;
    for (const auto& [name, n] : nodes_)
        if (n.gone_since != 0 && (n.draining || !n.left))
            out.push_back(
                {n.name, n.host, n.resources, n.labels, n.draining, n.left, n.gone_since});
    return out;
}

SKEIN_INLINE void head_memory::look() {
    const auto now = unix_now();
    std::vector<std::string> old;
    for (const auto& [name, n] : nodes_) {
        if (n.gone_since == 0 || n.draining || (!n.left && now - n.gone_since <= gone_for))
            continue;
        const auto since = missing_since_.try_emplace(name, loop_.exact_now()).first->second;
        if (loop_.exact_now() >= deadline_after(since, may_be_near)) old.push_back(name);
    }
    for (const auto& name : old) forget_node(name);
}

// ---- drivers ------------------------------------------------------------------------------------

SKEIN_INLINE void head_memory::driver_came(driver_record j) {
    if (drivers_.contains(j.driver)) return;
    for (auto* text : {&j.name, &j.host, &j.space, &j.begun_by}) *text = cut_text(*text);
    j.started = unix_now();
    for (const auto& one : past_) // it was given up, and comes all the same
        if (one.driver == j.driver) {
            j.started = one.started;
            j.begun_by = one.begun_by;
        }
    note(j);
    apply(std::move(j));
}

SKEIN_INLINE void head_memory::driver_went(std::uint64_t driver, job_end how) {
    const auto found = drivers_.find(driver);
    if (found == drivers_.end()) return;
    auto j = found->second;
    j.ended = std::max(unix_now(), j.started); // the wall clock may have been set back
    j.how = static_cast<std::uint8_t>(how);
    note(j);
    apply(std::move(j));
}

SKEIN_INLINE std::vector<past_job> head_memory::past_drivers() const {
    std::vector<past_job> out;
    for (auto at = past_.rbegin(); at != past_.rend(); ++at)
        out.push_back({at->name, at->host, at->pid, at->started, at->ended, at->how, at->space});
    return out;
}

// ---- jobs ---------------------------------------------------------------------------------------

SKEIN_INLINE void head_memory::job_is(job_record j) {
    note(j);
    apply(std::move(j));
}

SKEIN_INLINE void head_memory::forget_job(const std::string& id) {
    const job_forgotten_record gone{id};
    note(gone);
    apply(gone);
}

} // namespace skein::cluster::detail
