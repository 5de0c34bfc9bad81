// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a head remembers of nodes and drivers when they have gone, and how it gets into the log.
//
// All of it is in memory, and changes there at once; keep() writes what has changed, many changes
// with one sync, so that the loop never waits for a disk. Who must not be told before something is
// durable awaits kept().
//
// A new kind of record: a number, an aggregate, what apply() does with it, and a line in
// everything().

#include <skein/cluster/head_log.hpp>
#include <skein/cluster/messages.hpp>
#include <skein/core/function.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/random.hpp>
#include <skein/core/task.hpp>
#include <skein/core/wait.hpp>
#include <skein/net/token.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace skein::cluster::detail {

/// Records of a head's log; a number is never used again for something else.
enum class record_kind : std::uint16_t {
    started = 1,
    node = 2,
    node_forgotten = 3,
    driver = 4,
    job = 5,
    job_forgotten = 6,
};

/// A head has begun with this log: the first record of every file.
struct started_record {
    static constexpr auto kind = record_kind::started;
    std::uint64_t state = 0;      ///< drawn when the log was new
    std::uint64_t generation = 0; ///< how many heads have begun with it
    std::string token;            ///< the fingerprint of the cluster's
};
/// A node as it is now.
struct node_record {
    static constexpr auto kind = record_kind::node;
    std::string name, host, resources;
    std::vector<std::string> labels;
    bool draining = false;
    bool left = false;           ///< in order; kept because it is drained
    std::int64_t gone_since = 0; ///< seconds since 1970; 0: it is there
    std::int64_t drained_by = 0; ///< milliseconds since 1970; 0: its drain has no deadline
    bool drain_force = false;    ///< then what is left there is ended
    std::int64_t drain_ms = 0; ///< that the deadline gave: a clock that was set back gives no more
};
/// Nobody remembers the node any more.
struct node_forgotten_record {
    static constexpr auto kind = record_kind::node_forgotten;
    std::string name;
};
/// A driver as it is now, or was.
struct driver_record {
    static constexpr auto kind = record_kind::driver;
    std::uint64_t driver = 0; ///< its incarnation
    std::string name, host;
    std::int64_t pid = 0;
    std::int64_t started = 0, ended = 0; ///< seconds since 1970; 0: it has not
    std::uint8_t how = 0;                ///< job_end
    std::string space;                   ///< it is the space server of this namespace
    std::string begun_by;                ///< which a driver of this job has begun
};

/// A job that somebody has submitted, as it is now.
struct job_record {
    static constexpr auto kind = record_kind::job;
    std::uint64_t number = 0; ///< in the order in which they came
    job_request what;
    std::uint8_t state = 0; ///< job_state
    std::string reason, node;
    std::uint32_t attempt = 0;
    std::uint64_t lease_of = 0; ///< the newest attempt's leases are those of this driver
    std::int32_t exit_code = -1, signal = 0;
    std::int64_t submitted = 0, started = 0, ended = 0; ///< milliseconds since 1970
    std::vector<std::string> last_lines;
    std::uint64_t lines_before = 0; ///< of the attempts before the newest; all, if that has ended
    std::uint32_t not_counted = 0;  ///< see submitted_job
    bool is_stopping = false;
    std::uint8_t stops_as = 0; ///< job_state
    std::string stops_for;
    std::uint64_t placed_on = 0; ///< the incarnation of the node
    bool may_run = false;        ///< that was given up, and may run it still
};
/// Nobody remembers that job any more.
struct job_forgotten_record {
    static constexpr auto kind = record_kind::job_forgotten;
    std::string id;
};

/// Belongs to one loop. keep() must have ended before it is destroyed.
class head_memory {
public:
    static constexpr std::size_t most_gone_nodes = 4096;
    static constexpr std::size_t most_past_drivers = 1000;
    static constexpr std::size_t most_forgotten = 10'000; ///< ids of jobs; the oldest may return
    static constexpr std::size_t most_unwritten = 10'000; ///< records; then all is written anew
    static constexpr std::int64_t gone_for =
        7 * 86'400; ///< seconds; then a node that is not drained is forgotten
    /// The time that a node is remembered after it has gone, by this head's own clock, even if the
    /// wall clock was set forward. A drained node that came back to a head that had forgotten it
    /// would get work.
    static constexpr duration may_be_near = std::chrono::minutes(10);
    static constexpr std::size_t most_text = 256; ///< of a name; the rest is cut off
    static constexpr std::size_t most_offers =
        4096; ///< of resources, of labels; longer ones are left out

    explicit head_memory(loop& on) : loop_(on) {}
    head_memory(const head_memory&) = delete;
    head_memory& operator=(const head_memory&) = delete;
    ~head_memory() = default;

    /// Reads the log and begins a new generation in it. Blocks. A disk that only cannot be written
    /// is no error, see trouble().
    ///   errors  those of head_log::open; mismatch: the log of a cluster with another token;
    ///           not_supported
    void open(std::shared_ptr<head_log> log, const net::token& secret, random_source& random);
    [[nodiscard]] std::uint64_t state() const noexcept { return start_.state; }
    [[nodiscard]] std::uint64_t generation() const noexcept { return start_.generation; }
    /// The generation is durable: the next head with this log has a greater one, whatever happens
    /// to the machine. Before that nobody may be told of it.
    [[nodiscard]] bool is_begun() const noexcept { return begun_; }
    /// Called when is_begun() becomes true, by keep(): open() calls nobody.
    unique_function<void()> on_begun;
    /// The folder of the log; "": there is none.
    [[nodiscard]] std::string folder() const { return log_ ? log_->folder() : ""; }
    /// Why what changes is not durable; "": it is, or there is no log.
    [[nodiscard]] const std::string& trouble() const noexcept { return trouble_; }
    /// Records that are yet to be written.
    [[nodiscard]] std::size_t unwritten() const noexcept { return unwritten_.size(); }

    // nodes
    [[nodiscard]] const node_record* find_node(const std::string& name) const;
    void node_came(node_record n);
    void node_went(const std::string& name, bool left);
    ///   within_ms  from now on; no_drain_deadline: its drain has none
    ///   force      see node_record
    void node_drains(const std::string& name, bool on, std::int64_t within_ms = no_drain_deadline,
                     bool force = false);
    void forget_node(const std::string& name);
    [[nodiscard]] std::vector<missing_node> missing() const;

    // drivers
    /// It has come now; nothing happens if it is there.
    void driver_came(driver_record j);
    void driver_went(std::uint64_t driver, job_end how);
    [[nodiscard]] const std::map<std::uint64_t, driver_record>& open_drivers() const noexcept {
        return drivers_;
    }
    /// The last one first.
    [[nodiscard]] std::vector<past_job> past_drivers() const;

    // jobs
    void job_is(job_record j);
    /// A job of that id was forgotten, one of the last most_forgotten ones.
    [[nodiscard]] bool had_job(const std::string& id) const { return are_forgotten_.contains(id); }
    [[nodiscard]] bool has_log() const noexcept { return log_ != nullptr; }
    void forget_job(const std::string& id);
    /// By id.
    [[nodiscard]] const std::map<std::string, job_record>& jobs() const noexcept { return jobs_; }

    /// What time alone changes.
    void look();

    /// Writes what changes, until close() and the last of it.
    static task<void> keep(head_memory* self);
    void close() noexcept;
    /// Returns when all that has changed so far is durable, or cannot be made so now: then it says
    /// why.
    [[nodiscard]] task<std::string> kept() { return kept_of(this); }

private:
    template <class R>
    static log_record record_of(const R& r);
    template <class R>
    void note(const R& r);
    void apply(const log_record& r);
    void apply(started_record r) { start_ = std::move(r); }
    void apply(node_record r);
    void apply(const node_forgotten_record& r) {
        nodes_.erase(r.name);
        missing_since_.erase(r.name);
    }
    void apply(driver_record r);
    void apply(job_record r) { jobs_.insert_or_assign(r.what.id, std::move(r)); }
    void apply(const job_forgotten_record& r);
    [[nodiscard]] std::vector<log_record> everything() const;
    [[nodiscard]] std::int64_t unix_now();
    void wrote(const result<void>& done, std::uint64_t upto);
    void was_removed(const error& why);
    static task<void> wait_for_news(head_memory* self);
    static task<std::string> kept_of(head_memory* self);

    loop& loop_;
    std::shared_ptr<head_log> log_;
    started_record start_;
    std::map<std::string, node_record> nodes_;
    std::map<std::string, time_point> missing_since_; ///< or drained or not, since
    std::map<std::uint64_t, driver_record> drivers_;  ///< that have not ended
    std::deque<driver_record> past_;
    std::map<std::string, job_record> jobs_;
    std::deque<std::string> forgotten_; ///< ids, the oldest first
    std::set<std::string, std::less<>> are_forgotten_;

    std::vector<log_record> unwritten_; ///< none while all is written anew
    std::uint64_t last_ = 0, tried_ = 0, durable_ = 0;
    bool all_anew_ = false, closing_ = false, begun_ = false;
    std::string trouble_;
    wait_queue changed_, written_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/head_memory.ipp>
#endif
