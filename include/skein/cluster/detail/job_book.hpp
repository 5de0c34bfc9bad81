// SPDX-License-Identifier: Apache-2.0
#pragma once
// The jobs that a head knows, from their submission until they are forgotten: states, attempts,
// lines, tables, who follows them, and what of that goes into the head's log.
//
// The book says what is known; the head says what happens. A state changes at once, and is shown to
// others at once, too, but for an end: that is shown when the log has it, for the head after this one
// would say something else if this one died before that.
//
//     struct head : job_sources { ... };        // what waits for what, and logs that nodes have
//     job_book jobs(loop, memory, given_up, head);
//     const auto job = jobs.add(request, files);
//     jobs.change(*job, job_state::running, "");
//     jobs.note(*job);                          // into the log
//     jobs.keep_lines(*job, lines);             // followers hear of them

#include <skein/core/config.hpp>
#include <skein/cluster/detail/head_memory.hpp>
#include <skein/cluster/detail/head_silence.hpp>
#include <skein/cluster/detail/submitted_job.hpp>
#include <skein/cluster/job_progress.hpp>
#include <skein/core/bytes.hpp>
#include <skein/core/loop.hpp>
#include <skein/core/task.hpp>
#include <skein/net/requests.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace skein::cluster::detail {

using job_ptr = std::shared_ptr<submitted_job>;

/// What a book of jobs asks of the head that has it.
class job_sources {
public:
    /// Why a job that is pending has no room; "": nobody knows.
    [[nodiscard]] virtual std::string why_pending(const submitted_job& job) const = 0;
    /// "node n1 is silent for 7 s; given up at 30 s", of the node that has it; "": it is heard.
    [[nodiscard]] virtual std::string silence_of(const submitted_job& job) const = 0;
    /// What drivers of jobs have waited for so long that people should know, by job.
    [[nodiscard]] virtual texts_by_job held_up_jobs() const = 0;
    /// Lines and tables that nodes have of it in files.
    virtual task<node_log> ask_nodes(job_ptr job, ask_node_log asked) = 0;

protected:
    job_sources() = default;
    job_sources(const job_sources&) = default;
    job_sources& operator=(const job_sources&) = default;
    ~job_sources() = default;
};

/// Belongs to one loop.
class job_book {
public:
    /// All must outlive it.
    job_book(loop& on, head_memory& memory, const left_attempts& given_up, job_sources& sources)
        : loop_(on), memory_(memory), given_up_(given_up), sources_(sources) {}

    // ---- what there is
    [[nodiscard]] const std::map<std::string, job_ptr>& all() const noexcept { return by_id_; }
    /// nullptr: there is none.
    [[nodiscard]] job_ptr find(const std::string& id) const;
    ///   errors  not_found
    [[nodiscard]] job_ptr called(const std::string& id) const;
    /// Grows whenever something changes that others are told.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

    // ---- what comes and goes
    /// A new one that is pending, without an attempt. Draws an id if it has none.
    ///   errors  already_exists, invalid_argument, too_large, exhausted
    [[nodiscard]] job_ptr add(job_request what, package_pin files);
    /// One that the log has.
    void restore(const job_ptr& job);
    /// The same one, submitted before by who asks again because he had no answer; or nullptr.
    [[nodiscard]] job_ptr same(const submit_job& asked) const;
    ///   errors  not_found; invalid_argument: it has not ended
    void forget(const std::string& id);
    /// Too many are remembered, or too much of what they have printed: those that ended first go.
    void forget_old(const submitted_job& but);

    // ---- what becomes of one
    void change(submitted_job& job, job_state to, std::string reason);
    /// Into the log, as it is now.
    void note(const submitted_job& job);
    /// Shows its end when no head will say anything else.
    [[nodiscard]] task<void> show_end(job_ptr job) { return show_when_kept(this, std::move(job)); }
    /// All ends, as nobody will be asked again.
    void show_all();
    /// For people: it is not in the log.
    void remember_attempt(submitted_job& job, const std::string& reason) const;
    void keep_lines(submitted_job& job, std::vector<printed_lines> lines);
    void keep_rows(submitted_job& job, const job_rows& rows);

    // ---- what is told
    ///   held_up  held_up_jobs(), once for a whole list
    [[nodiscard]] job_info info_of(const submitted_job& job,
                                   const texts_by_job* held_up = nullptr) const;
    [[nodiscard]] job_list list(const ask_jobs& asked, std::size_t bound) const;
    [[nodiscard]] job_lines lines_of(const submitted_job& job, std::uint64_t from) const;
    [[nodiscard]] task<job_log> read_log(ask_log asked) { return log_from(this, std::move(asked)); }
    [[nodiscard]] task<job_table_text> find_table(std::string id) {
        return table_of(this, std::move(id));
    }
    /// Answers ask_jobs, follow_job and ask_log over one link.
    ///   hears_more  set while who is there follows a job, and has not heard all of it
    void serve(net::request_service& service, const std::weak_ptr<bool>& hears_more);

private:
    void check(const job_request& what) const;
    static task<void> show_when_kept(job_book* self, job_ptr job);
    static task<job_lines> follow(job_book* self, std::shared_ptr<bool> hears_more,
                                  follow_job asked);
    static task<job_log> log_from(job_book* self, ask_log asked);
    static task<job_table_text> table_of(job_book* self, std::string id);

    loop& loop_;
    head_memory& memory_;
    const left_attempts& given_up_;
    job_sources& sources_;
    std::map<std::string, job_ptr> by_id_;
    std::map<std::uint64_t, job_ptr> in_order_;
    std::uint64_t last_number_ = 0;
    std::uint64_t changes_ = 0;
};

[[nodiscard]] std::int64_t unix_ms(loop& on);
/// What the log says of a job.
[[nodiscard]] job_ptr job_of_record(const job_record& record);

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/job_answers.ipp>
#include <skein/cluster/detail/job_book.ipp>
#endif
