// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/run_dir.hpp>.

#include <skein/core/clock.hpp>
#include <skein/core/disk.hpp>
#include <skein/core/mounted_folder.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/core/random.hpp>
#include <skein/report/detail/run_lock.ipp>
#include <skein/report/detail/run_rows.ipp>
#include <skein/report/metrics_table.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <istream>
#include <limits>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report {

namespace detail {

/// Who new files in a folder belong to, as its file system sees it (root's need not be root's
/// there).
SKEIN_INLINE result<std::uint32_t> owner_of_new_files(const std::string& folder) {
    const auto path = join_path(folder, fmt::format(".owner-{:016x}", system_random().next()));
    const unique_fd made(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!made) return errno_error(errno, "create", path);
    struct stat info{};
    const int rc = ::fstat(made.get(), &info), number = errno;
    ::unlink(path.c_str());
    if (rc != 0) return errno_error(number, "stat", path);
    return static_cast<std::uint32_t>(info.st_uid);
}

/// Nothing when a folder is ours or root's, or not there; else whose it is.
SKEIN_INLINE std::optional<error> foreign(const std::string& folder, std::uint32_t mine) {
    struct stat info{};
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid == mine || info.st_uid == 0)
        return std::nullopt;
    return error(errc::permission_denied,
                 fmt::format("{} belongs to user {}, this program's files to user {}", folder,
                             info.st_uid, mine));
}

/// The same of the folders of a run. Of another host's whoever serves it has seen to that.
///   whose  gets why they are not
///   errors  those of owner_of_new_files
SKEIN_INLINE result<bool> is_foreign_run(const run_dir& run, std::optional<error>& whose) {
    if (mounted_folder::of(run.path()) != nullptr) return false;
    const auto mine = owner_of_new_files(run.path());
    if (!mine) return mine.error();
    for (const auto& folder : {run.path(), run.checkpoints()})
        if (!whose) whose = foreign(folder, *mine);
    return whose.has_value();
}

SKEIN_INLINE double system_wall_time() {
    return std::chrono::duration<double>(system_clock().wall()).count();
}

} // namespace detail

SKEIN_INLINE run_dir::run_dir() = default;
SKEIN_INLINE run_dir::run_dir(run_dir&&) noexcept = default;
SKEIN_INLINE run_dir& run_dir::operator=(run_dir&&) noexcept = default;
SKEIN_INLINE run_dir::~run_dir() = default;

SKEIN_INLINE error run_dir::unusable(const error& why) const {
    return error(why.code(), fmt::format("run folder {} cannot be used: {}", path_, why.text()))
        .with_hint(why.code() == errc::disk_full
                       ? "free some space there or choose another folder"
                       : "choose another folder for runs, or change its owner or mode");
}

/// Makes and locks path_. False when it is another run's, and not the one that is wanted.
SKEIN_INLINE bool run_dir::claim(bool wanted) {
    posix_disk disk(link_policy::refuse);
    if (auto made = disk.make_dirs(path_); !made) throw unusable(made.error());
    // A folder counts as taken once it holds rows or checkpoints; an empty one may have been made
    // by hand. Asked with the lock in hand: between two runs that begin at once the lock decides.
    const auto has = [&](const char* what) {
        return disk.status(join_path(path_, what)).has_value();
    };
    const auto taken = [&] { return has(metrics_file) || has("checkpoints"); };
    if (!wanted && taken()) return false;
    std::optional<error> whose;
    const auto is_foreign = detail::is_foreign_run(*this, whose);
    if (!is_foreign) throw unusable(is_foreign.error());
    if (*is_foreign && !wanted) return false;
    if (*is_foreign) throw unusable(*whose);

    auto lock = detail::lock_run(path_, wanted ? options_.patience : time_span());
    switch (lock.outcome) {
    case detail::lock_outcome::failed:
        throw unusable(lock.why.value_or(
            error(errc::io, fmt::format("{} cannot be locked", join_path(path_, ".lock")))));
    case detail::lock_outcome::busy:
        if (!wanted) return false;
        if (take_from_its_job()) return true;
        throw error(errc::usage,
                    fmt::format("{} is in use by {}", path_, detail::lock_owner_of(path_)))
            .with_hint("wait for it, or give the run another name");
    case detail::lock_outcome::unsupported:
        if (!wanted && !lock.made) return false;
        notices_.push_back(fmt::format("{} cannot be locked there: let no two runs use it", path_));
        return true;
    case detail::lock_outcome::held: break;
    }
    if (!wanted && taken()) return false;
    hold(std::move(lock.held));
    return true;
}

SKEIN_INLINE void run_dir::hold(std::unique_ptr<skein::file> lock) {
    unshared_ = fork_guard();
    lock_ = std::move(lock);
    unshared_ = fork_guard(lock_->descriptor());
}

/// From a process of the same job, which has gone on without it.
SKEIN_INLINE bool run_dir::take_from_its_job() {
    if (options_.job.empty() || written_by(path_) != options_.job) return false;
    const auto whose = detail::lock_owner_of(path_);
    auto lock = detail::take_lock(path_);
    if (lock.outcome != detail::lock_outcome::held) return false;
    notices_.push_back(
        fmt::format("{} was still held by {}, which does not answer: taken over", path_, whose));
    hold(std::move(lock.held));
    return true;
}

/// Another process of the job may have taken the folder while this one stood still.
SKEIN_INLINE result<void> run_dir::check_ours() const {
    if (!lock_ || detail::is_lock_of(*lock_, path_)) return {};
    return error(errc::aborted,
                 fmt::format("{} was taken over by {}", path_, detail::lock_owner_of(path_)));
}

SKEIN_INLINE run_dir run_dir::create(const std::string& root, const std::string& name,
                                     run_dir_options options) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
        throw error(errc::usage, fmt::format("'{}' cannot be the name of a run", name))
            .with_hint("use one folder name, e.g. gpt");
    posix_disk disk(link_policy::refuse);
    run_dir run;
    run.options_ = options;
    if (run.options_.wall_time == nullptr) run.options_.wall_time = &detail::system_wall_time;
    run.path_ = root;
    if (auto made = disk.make_dirs(root); !made) throw run.unusable(made.error());
    run.name_ = name;
    run.path_ = join_path(root, name);
    for (int k = 2; !run.claim(options.resume); ++k) {
        run.name_ = fmt::format("{}.{}", name, k);
        run.path_ = join_path(root, run.name_);
    }
    if (run.name_ != name)
        run.notices_.insert(
            run.notices_.begin(),
            fmt::format("{} exists: this run is {} (resume it to go on with the old one)",
                        join_path(root, name), run.path_));

    // Find out now, not after an hour, whether it can be written.
    const auto probe = join_path(run.path_, ".write-test");
    auto written = disk.write_whole(probe, as_bytes(std::string_view("ok")));
    (void)disk.remove(probe);
    if (!written) throw run.unusable(written.error());
    run.open_files();
    return run;
}

SKEIN_INLINE void run_dir::open_files() {
    auto events = event_file::open(path_, options_.wall_time());
    if (!events) throw unusable(events.error());
    events_ = std::move(*events);
    for (auto* of : {&lines_, &decisions_})
        of->bytes = detail::whole_bytes(detail::read_text(file(of->base)));

    const auto csv = detail::read_text(file(metrics_file));
    const metrics_table table(csv);
    if (table.names().empty()) {
        write_header().value();
        return;
    }
    csv_bytes_ = detail::whole_bytes(csv);
    columns_ = table.names();
    if (!table.begins_with_step())
        throw error(errc::malformed,
                    fmt::format("{} does not begin with a column 'step'", file(metrics_file)))
            .with_hint("move it away or choose another run name");
    columns_.erase(columns_.begin());
}

SKEIN_INLINE void run_dir::truncate_after(std::uint64_t step) {
    cut([step](std::uint64_t row) { return row <= step; });
    events_->truncate_after(step).value();
}

SKEIN_INLINE void run_dir::clear() {
    columns_.clear();
    cut([](std::uint64_t) { return false; });
    events_->clear(options_.wall_time()).value();
}

SKEIN_INLINE void run_dir::rewrite_after(std::uint64_t step) {
    drop_waiting([step](std::uint64_t row) { return row <= step; });
    csv_rewrites_ = lines_.rewrites = decisions_.rewrites = events_rewrite_ = step;
}

/// Of those that could not be written.
template <class Keep>
void run_dir::drop_waiting(Keep keep) {
    std::erase_if(csv_waits_, [&](const metrics_row& row) { return !keep(row.step); });
    for (auto* of : {&lines_, &decisions_})
        std::erase_if(of->waits, [&](const std::string& line) {
            return detail::kept_lines(line, keep).empty();
        });
    std::erase_if(events_wait_, [&](const tb_event& event) {
        return !keep(static_cast<std::uint64_t>(event.step));
    });
}

template <class Keep>
void run_dir::cut(Keep keep) {
    check_ours().value();
    drop_waiting(keep);
    csv_rewrites_ = lines_.rewrites = decisions_.rewrites = events_rewrite_ = std::nullopt;
    posix_disk disk(link_policy::refuse);
    const auto replace = [&](const char* base, std::uint64_t& bytes, auto kept) {
        const auto before = detail::read_text(file(base));
        const auto after = kept(std::string_view(before));
        if (after != before) disk.replace(file(base), as_bytes(std::string_view(after))).value();
        bytes = after.size();
    };
    replace(metrics_file, csv_bytes_,
            [&](std::string_view text) { return detail::kept_rows(text, columns_, keep); });
    for (auto* of : {&lines_, &decisions_})
        replace(of->base, of->bytes,
                [&](std::string_view text) { return detail::kept_lines(text, keep); });
}

namespace detail {
/// As lists in lists, by its shape.
[[nodiscard]] SKEIN_INLINE ordered_json nested(const metric_array& array, std::size_t dimension = 0,
                                               std::size_t first = 0) {
    if (dimension == array.shape.size()) return array.values[first];
    std::size_t stride = 1;
    for (std::size_t d = dimension + 1; d < array.shape.size(); ++d) stride *= array.shape[d];
    ordered_json list = ordered_json::array();
    for (std::size_t i = 0; i < array.shape[dimension]; ++i)
        list.push_back(nested(array, dimension + 1, first + i * stride));
    return list;
}
} // namespace detail

SKEIN_INLINE void run_dir::append(const metrics_row& row) {
    for (auto& v : row.values)
        if (std::find(columns_.begin(), columns_.end(), v.name) == columns_.end()) {
            columns_.push_back(v.name);
            header_waits_ = true;
        }
    csv_waits_.push_back(row);

    ordered_json object = {{"step", row.step}};
    tb_event event{.wall_time = options_.wall_time(),
                   .step = static_cast<std::int64_t>(row.step),
                   .file_version = {},
                   .scalars = {}};
    for (auto* part : {&row.values, &row.timings})
        for (auto& v : *part) {
            object[v.name] = v.value;
            event.scalars.emplace_back(v.name, static_cast<float>(v.value));
        }
    for (const auto& array : row.arrays) object[array.name] = detail::nested(array);
    if (row.spent) {
        object["world"] = row.workers;
        object["run_s"] = row.spent->seconds;
        object["worker_s"] = row.spent->worker_seconds;
        if (!row.spent->by_kind.empty()) object["worker_kinds"] = row.spent->by_kind;
        object["unix_s"] = row.spent->unix_seconds;
    }
    lines_.waits.push_back(dump_json(object) + "\n");
    if (!event.scalars.empty()) events_wait_.push_back(std::move(event));
    flush();
}

SKEIN_INLINE void run_dir::append_event(std::string_view object) {
    decisions_.waits.push_back(std::string(object) + "\n");
    flush();
}

SKEIN_INLINE void run_dir::flush() {
    reserve_.run([this] { return write_waiting(); }).value();
}

/// All are tried; the first reason of those that failed.
SKEIN_INLINE result<void> run_dir::write_waiting() {
    if (auto ours = check_ours(); !ours) return ours;
    const result<void> all[] = {write_csv(), write_lines(lines_), write_events(),
                                write_lines(decisions_)};
    for (const auto& done : all)
        if (!done) return done;
    return {};
}

SKEIN_INLINE std::size_t run_dir::waiting() const noexcept {
    return std::max(
        {csv_waits_.size(), lines_.waits.size(), events_wait_.size(), decisions_.waits.size()});
}

/// metrics.csv anew with all columns; rows that lack the last ones get empty fields.
SKEIN_INLINE result<void> run_dir::write_header() {
    posix_disk disk(link_policy::refuse);
    const auto path = file(metrics_file);
    std::string text = detail::csv_header(columns_);
    if (disk.status(path)) {
        const auto bytes = disk.read_whole(path, std::uint64_t{8} << 30);
        if (!bytes) return bytes.error();
        const metrics_table table(as_text(*bytes));
        for (std::size_t i = 0; i < table.size(); ++i) {
            const auto missing = columns_.size() + 1 - table.cells(i).size();
            text.append(table.row(i)).append(missing, ',') += '\n';
        }
    }
    if (auto done = disk.replace(path, as_bytes(std::string_view(text))); !done) return done;
    csv_bytes_ = text.size();
    header_waits_ = false;
    return {};
}

SKEIN_INLINE result<void> run_dir::write_csv() {
    if (csv_waits_.empty()) return {};
    if (header_waits_)
        if (auto done = write_header(); !done) return done;
    std::string text;
    for (const auto& row : csv_waits_) {
        text += fmt::format("{}", row.step);
        for (auto& column : columns_) {
            text += ',';
            if (auto* value = find_metric(row.values, column)) text += detail::number_text(*value);
        }
        text += '\n';
    }
    const auto kept = [&](std::string_view csv, auto keep) {
        return detail::kept_rows(csv, columns_, keep);
    };
    if (auto done = detail::write_rows(file(metrics_file), csv_bytes_, csv_rewrites_, text, kept);
        !done)
        return done;
    csv_waits_.clear();
    return {};
}

SKEIN_INLINE result<void> run_dir::write_lines(line_file& to) {
    if (to.waits.empty()) return {};
    std::string text;
    for (const auto& line : to.waits) text += line;
    const auto kept = [](std::string_view rows, auto keep) {
        return detail::kept_lines(rows, keep);
    };
    if (auto done = detail::write_rows(file(to.base), to.bytes, to.rewrites, text, kept); !done)
        return done;
    to.waits.clear();
    return {};
}

SKEIN_INLINE result<void> run_dir::write_events() {
    if (events_wait_.empty()) return {};
    if (events_rewrite_)
        if (auto done = events_->truncate_after(*events_rewrite_); !done) return done;
    events_rewrite_.reset();
    std::size_t written = 0;
    result<void> done;
    while (written < events_wait_.size() && (done = events_->append(events_wait_[written])))
        ++written;
    events_wait_.erase(events_wait_.begin(),
                       events_wait_.begin() + static_cast<std::ptrdiff_t>(written));
    return done;
}

SKEIN_INLINE void run_dir::write_config(std::string_view config) {
    check_ours().value();
    posix_disk disk(link_policy::refuse);
    disk.replace(file("config.json"), as_bytes(config)).value();
}

SKEIN_INLINE void run_dir::write_progress(std::string_view object) {
    const auto text = std::string(object) + "\n";
    (void)reserve_.run([&]() -> result<void> {
        if (auto ours = check_ours(); !ours) return ours;
        posix_disk disk(link_policy::refuse);
        auto opened = disk.open(file("progress.json"), open_mode::write);
        return opened ? (*opened)->write_at(0, as_bytes(std::string_view(text)))
                      : result<void>(opened.error());
    });
}

SKEIN_INLINE std::optional<std::string> run_dir::read_config() const {
    auto text = detail::read_text(file("config.json"));
    if (text.empty()) return std::nullopt;
    if (const auto parsed = parse_json(std::string_view(text)); !parsed)
        throw error(parsed.error()).with_where(file("config.json"));
    return text;
}

SKEIN_INLINE void run_dir::remove_result() {
    posix_disk disk(link_policy::refuse);
    const auto removed = disk.remove(file("result.json"));
    if (!removed && removed.error().code() != errc::not_found) throw removed.error();
}

SKEIN_INLINE std::string run_dir::written_by(const std::string& path) {
    posix_disk disk(link_policy::refuse);
    const auto bytes = disk.read_whole(path + "/config.json");
    if (!bytes) return {}; // what cannot be read is not ours
    const auto parsed = parse_json(*bytes);
    if (!parsed || !parsed->is_object() || !parsed->contains("job_id")) return {};
    const auto& id = parsed->at("job_id");
    return id.is_string() ? id.get<std::string>() : std::string();
}

namespace detail {
/// The point that a row says for a column; nothing: the row has no step, or nothing there.
[[nodiscard]] SKEIN_INLINE std::optional<curve_point> point_of(
    std::string_view row, const std::vector<std::string>& cells, std::size_t column) {
    const auto step = step_of(row);
    if (!step || column >= cells.size() || cells[column].empty()) return std::nullopt;
    return curve_point{static_cast<double>(*step),
                       number_of(cells[column]).value_or(std::numeric_limits<double>::quiet_NaN())};
}
} // namespace detail

SKEIN_INLINE std::vector<metrics_column> read_metrics(const std::string& folder) {
    const auto path = folder + "/" + metrics_file;
    const auto csv = detail::read_text(path);
    const metrics_table table(csv);
    std::vector<metrics_column> columns;
    const auto& names = table.names();
    if (names.empty()) return columns;
    if (!table.begins_with_step())
        throw error(errc::malformed, path + " does not begin with a column 'step'")
            .with_hint("it is no file of a run");
    for (std::size_t c = 1; c < names.size(); ++c) columns.push_back({names[c], {}});
    for (std::size_t i = 0; i < table.size(); ++i) {
        const auto cells = table.cells(i);
        for (std::size_t c = 1; c < names.size(); ++c)
            if (const auto point = detail::point_of(table.row(i), cells, c))
                columns[c - 1].points.push_back(*point);
    }
    return columns;
}

SKEIN_INLINE std::vector<curve_point> run_dir::curve(std::string_view column) const {
    std::vector<curve_point> points;
    const auto it = std::find(columns_.begin(), columns_.end(), column);
    if (it == columns_.end()) return points;
    const auto place = static_cast<std::size_t>(it - columns_.begin()) + 1;
    const auto csv = detail::read_text(file(metrics_file));
    const metrics_table table(csv);
    for (std::size_t i = 0; i < table.size(); ++i)
        if (const auto point = detail::point_of(table.row(i), table.cells(i), place))
            points.push_back(*point);
    return points;
}

namespace detail {
/// The numbers of workers, as steps. Lines that are no change of the world are passed over.
[[nodiscard]] SKEIN_INLINE std::vector<curve_point> workers_by_step(std::istream& events,
                                                                    std::uint64_t last) {
    std::vector<curve_point> points;
    for (std::string line; std::getline(events, line);) {
        const auto row = parse_json(std::string_view(line));
        if (!row || row->value("rule", "") != "world" || !row->contains("from")) continue;
        const auto step = row->value("step", 0.0);
        const auto from = row->value("from", 0.0), to = row->value("to", 0.0);
        if (points.empty()) points.push_back({0.0, from});
        points.push_back({step, from});
        points.push_back({step, to});
    }
    if (!points.empty()) points.push_back({static_cast<double>(last), points.back().y});
    return points;
}
} // namespace detail

SKEIN_INLINE void run_dir::write_world_svg(std::uint64_t last, std::string_view title) {
    reserve_
        .run([&]() -> result<void> {
            std::istringstream events(detail::read_text(file("events.jsonl")));
            const report::curve workers{"workers", detail::workers_by_step(events, last)};
            if (workers.points.empty()) return {};
            const plot_options how{.title = title.empty() ? name_ : std::string(title),
                                   .y_label = "workers"};
            const auto svg = plot_svg(how, {workers});
            posix_disk disk(link_policy::refuse);
            return disk.replace(file("world.svg"), as_bytes(std::string_view(svg)));
        })
        .value();
}

SKEIN_INLINE void run_dir::write_svg(const std::vector<std::string>& columns,
                                     std::string_view title) {
    reserve_
        .run([&]() -> result<void> {
            std::vector<report::curve> curves;
            try {
                for (auto& column : columns)
                    curves.push_back({column == "loss"       ? "train"
                                      : column == "val_loss" ? "validation"
                                                             : column,
                                      curve(column)});
            } catch (const error& why) {
                return why;
            }
            const auto svg =
                plot_svg({.title = title.empty() ? name_ : std::string(title)}, curves);
            posix_disk disk(link_policy::refuse);
            return disk.replace(file("loss.svg"), as_bytes(std::string_view(svg)));
        })
        .value();
}

} // namespace skein::report
