// SPDX-License-Identifier: Apache-2.0
#pragma once
// What ranks have added up in the steps of an epoch: out of the rows of its steps, which all ranks
// have alike, so that every rank has the same sums. Used by the session alone.

#include <skein/core/error.hpp>
#include <skein/report/metrics.hpp>
#include <skein/train/detail/rule_state.hpp>
#include <skein/wire/json.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::train::detail {

/// The column of a row that has the sum of a step begins so.
inline constexpr std::string_view sum_prefix = "sum/";

class epoch_sums {
public:
    void begin_step(std::uint64_t epoch) noexcept {
        drawn_ = epoch;
        is_taken_back_ = false;
    }
    /// The step that began is committed. Sums of an epoch before are dropped with the first step of
    /// another one.
    void take_step(const std::vector<report::metric_value>& row) {
        if (drawn_ && *drawn_ != epoch_) {
            sums_.clear();
            epoch_ = *drawn_;
        }
        drawn_.reset();
        for (const auto& each : row)
            if (each.name.starts_with(sum_prefix))
                sums_[each.name.substr(sum_prefix.size())] += each.value;
    }
    /// It has not been, and comes again.
    void take_back() noexcept {
        drawn_.reset();
        is_taken_back_ = true;
    }
    /// Of the step in hand; nothing: there is none.
    [[nodiscard]] std::optional<std::uint64_t> drawn_epoch() const noexcept { return drawn_; }
    [[nodiscard]] bool is_taken_back() const noexcept { return is_taken_back_; }
    [[nodiscard]] const std::map<std::string, double>& sums() const noexcept { return sums_; }
    /// That of the step that was committed last.
    [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }

    /// Of a checkpoint: reads back to the same bits.
    [[nodiscard]] json saved() const {
        json all = json::object();
        for (const auto& [name, sum] : sums_) all[name] = hexadecimal(sum);
        return {{"epoch", epoch_}, {"sums", std::move(all)}};
    }
    /// Errors: malformed, with `where`.
    void restore(const json& extra, const std::string& where) {
        sums_.clear();
        epoch_ = 0;
        const auto found = extra.find("epoch_sums");
        if (found == extra.end()) return;
        const auto bad = [&](const std::string& what) {
            throw error(errc::malformed, what)
                .with_where(where)
                .with_hint("the checkpoint is damaged, or another program's");
        };
        const auto epoch = json_uint(*found, "epoch");
        if (!epoch || !found->contains("sums") || !found->at("sums").is_object())
            bad("saved sums have no epoch or no numbers");
        epoch_ = *epoch;
        for (const auto& [name, text] : found->at("sums").items()) {
            double sum = 0.0;
            state_words words(text.is_string() ? text.template get_ref<const std::string&>()
                                               : std::string_view());
            if (!words.read(sum) || !words.empty())
                bad(fmt::format("the saved sum '{}' is no number", name));
            sums_.emplace(name, sum);
        }
    }

private:
    std::map<std::string, double> sums_;
    std::uint64_t epoch_ = 0;
    std::optional<std::uint64_t> drawn_;
    bool is_taken_back_ = false; // the step that was drawn last
};

} // namespace skein::train::detail
