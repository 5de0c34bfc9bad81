// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of <skein/report/progress.hpp>.

#include <skein/core/clock.hpp>
#include <skein/wire/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/core.h>

namespace skein::report {

SKEIN_INLINE progress::progress(progress_options options) : options_(std::move(options)) {
    if (!options_.write)
        options_.write = [](std::string_view text) {
            std::fwrite(text.data(), 1, text.size(), stderr);
            std::fflush(stderr);
        };
    if (!options_.columns)
        options_.columns = [] {
            winsize size{};
            if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
                return static_cast<int>(size.ws_col);
            return 80;
        };
    if (!options_.clock)
        options_.clock = [] {
            return std::chrono::duration<double>(system_clock().now().time_since_epoch()).count();
        };
    if (options_.mode == progress_mode::automatic) {
        const char* term = std::getenv("TERM");
        const bool dumb = term == nullptr || std::string_view(term) == "dumb";
        options_.mode =
            ::isatty(STDERR_FILENO) == 1 && !dumb ? progress_mode::terminal : progress_mode::plain;
    }
    started_ = options_.clock();
}

SKEIN_INLINE progress::~progress() {
    try {
        finish();
    } catch (...) { // a broken sink must not end the program while it unwinds
    }
}

SKEIN_INLINE std::optional<double> progress::seconds_left(const progress_update& now) const {
    if (options_.total == 0 || now.step <= options_.first) return std::nullopt;
    if (now.step >= options_.total) return 0.0;
    const double per_step = now.step_seconds.value_or(
        (options_.clock() - started_) / static_cast<double>(now.step - options_.first));
    return per_step * static_cast<double>(options_.total - now.step);
}

SKEIN_INLINE std::string progress::line(const progress_update& now, int columns) const {
    const auto width = static_cast<std::size_t>(std::max(columns, 20));
    const auto total = options_.total;
    std::string head = options_.name.empty() ? "" : options_.name + "  ";
    const std::string last = fmt::format("{}", total);
    head += total == 0 ? fmt::format("step {}", now.step)
                       : fmt::format("{:>{}}/{}", now.step, last.size(), last);

    // Parts in order of place; those with the highest rank fall out first on a narrow terminal.
    struct part {
        std::string text;
        int rank;
    };
    std::vector<part> parts;
    if (total != 0) {
        const double done =
            std::min(1.0, static_cast<double>(now.step) / static_cast<double>(total));
        const auto filled = static_cast<std::size_t>(done * 20.0);
        if (options_.mode == progress_mode::terminal)
            parts.push_back(
                {"[" + std::string(filled, '#') + std::string(20 - filled, '-') + "]", 5});
        parts.push_back({fmt::format("{:3.0f}%", std::floor(done * 100.0)), 2});
    }
    if (now.loss) parts.push_back({fmt::format("loss {:.4f}", *now.loss), 0});
    for (auto& [name, value] : now.more)
        parts.push_back({fmt::format("{} {:.4g}", name, value), 6});
    if (now.tokens_per_s)
        parts.push_back(
            {human_count(*now.tokens_per_s) + (options_.samples ? " samples/s" : " tok/s"), 3});
    if (now.step_seconds) parts.push_back({human_seconds(*now.step_seconds) + "/step", 4});
    if (now.data_share && *now.data_share >= 0.005)
        parts.push_back({fmt::format("data {:.0f} %", 100 * *now.data_share), 5});
    if (auto left = seconds_left(now)) parts.push_back({"ETA " + human_clock(*left), 1});

    auto length = [&] {
        std::size_t n = head.size();
        for (auto& p : parts) n += 2 + p.text.size();
        return n;
    };
    // The last column stays free: many terminals wrap a full line.
    while (length() > width - 1 && !parts.empty()) {
        auto worst = parts.begin();
        for (auto it = parts.begin(); it != parts.end(); ++it)
            if (it->rank >= worst->rank) worst = it;
        parts.erase(worst);
    }
    std::string out = head;
    for (auto& p : parts) out += "  " + p.text;
    if (out.size() > width - 1) out.resize(width - 1);
    return out;
}

SKEIN_INLINE void progress::show(const progress_update& now) {
    switch (options_.mode) {
    case progress_mode::terminal:
        options_.write("\r\x1b[K" + line(now, options_.columns()));
        line_open_ = true;
        break;
    case progress_mode::plain: options_.write(line(now, 1000) + "\n"); break;
    case progress_mode::json_lines: {
        ordered_json o = {{"event", "step"}, {"step", now.step}};
        if (options_.total != 0) o["total"] = options_.total;
        if (now.loss) o["loss"] = *now.loss;
        if (now.tokens_per_s)
            o[options_.samples ? "samples_per_s" : "tokens_per_s"] = *now.tokens_per_s;
        if (now.step_seconds) o["step_seconds"] = *now.step_seconds;
        for (auto* numbers : {&now.more, &now.also})
            for (auto& [name, value] : *numbers) o[name] = value;
        if (auto left = seconds_left(now)) o["eta_seconds"] = *left;
        options_.write(dump_json(o) + "\n");
        break;
    }
    case progress_mode::quiet:
    case progress_mode::automatic: break;
    }
}

SKEIN_INLINE void progress::update(const progress_update& now) {
    if (options_.mode == progress_mode::quiet) return;
    if (options_.mode == progress_mode::json_lines) return show(now);
    const double at = options_.clock();
    const auto interval = std::chrono::duration<double>(options_.mode == progress_mode::terminal
                                                            ? options_.terminal_interval
                                                            : options_.plain_interval);
    const bool last = options_.total != 0 && now.step >= options_.total;
    if (shown_ && at - *shown_ < interval.count() && !last) {
        pending_ = now;
        return;
    }
    shown_ = at;
    pending_.reset();
    show(now);
}

SKEIN_INLINE void progress::erase() {
    if (!line_open_) return;
    options_.write("\r\x1b[K");
    line_open_ = false;
}

SKEIN_INLINE void progress::note(std::string_view text) {
    if (options_.mode == progress_mode::quiet) return;
    if (options_.mode == progress_mode::json_lines) {
        options_.write(dump_json(ordered_json{{"event", "note"}, {"text", text}}) + "\n");
        return;
    }
    erase();
    options_.write(std::string(text) + "\n");
}

SKEIN_INLINE void progress::failure(std::string_view text) {
    if (options_.mode != progress_mode::quiet) return note(text);
    options_.write(std::string(text) + "\n");
}

SKEIN_INLINE void progress::event(std::string_view object) {
    if (options_.mode == progress_mode::json_lines) options_.write(std::string(object) + "\n");
}

SKEIN_INLINE void progress::finish() {
    if (finished_) return;
    finished_ = true;
    if (pending_) {
        show(*pending_);
        pending_.reset();
    }
    if (line_open_) options_.write("\n");
    line_open_ = false;
}

} // namespace skein::report
