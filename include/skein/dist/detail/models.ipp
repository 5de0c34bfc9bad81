// SPDX-License-Identifier: Apache-2.0
#pragma once
// The list of models, and the choice among them.

#include <skein/dist/detail/own_models.ipp>
#include <skein/spmd/rendezvous.hpp>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace skein::dist {

namespace detail {

struct model_list {
    std::mutex guard;
    std::vector<comm_model> models = own_models();

    static model_list& instance() {
        static model_list list;
        return list;
    }
    [[nodiscard]] std::vector<comm_model> copy() {
        const std::lock_guard lock(guard);
        return models;
    }
};

} // namespace detail

SKEIN_INLINE int comm_site::ranks() const { return world.world_size(); }

SKEIN_INLINE int comm_site::label(int rank) const {
    return options.labels.empty() ? rank : options.labels[static_cast<std::size_t>(rank)];
}
SKEIN_INLINE std::vector<int> comm_site::labels_of(const std::vector<int>& ranks) const {
    std::vector<int> labels;
    for (const int r : ranks) labels.push_back(label(r));
    return labels;
}

SKEIN_INLINE void add_comm_model(comm_model model) {
    auto& list = detail::model_list::instance();
    const std::lock_guard lock(list.guard);
    for (const auto& known : list.models) {
        if (known.name == model.name || model.name == "automatic") {
            throw error(errc::already_exists,
                        fmt::format("there is a communicator called '{}' already", model.name));
        }
    }
    list.models.push_back(std::move(model));
}

SKEIN_INLINE std::vector<std::string> comm_model_names() {
    std::vector<std::string> names{"automatic"};
    for (const auto& m : detail::model_list::instance().copy()) names.push_back(m.name);
    return names;
}

SKEIN_INLINE result<std::string> checked_comm_model(std::string_view name) {
    auto names = comm_model_names();
    if (std::find(names.begin(), names.end(), name) != names.end()) return std::string(name);
    std::erase(names, "stub"); // what a single rank has anyway is nothing to choose
    return error(errc::invalid_argument, fmt::format("no communicator is called '{}'", name))
        .with_hint(fmt::format("choose one of: {}", fmt::join(names, ", ")));
}

SKEIN_INLINE comm_model choose_comm_model(const comm_site& site) {
    const std::string& name = site.options.model;
    (void)checked_comm_model(name).value();
    std::optional<comm_model> best;
    int most = 0;
    std::string why_not;
    for (auto& model : detail::model_list::instance().copy()) {
        if (name != "automatic" && name != model.name) continue;
        const comm_fit fit = model.fits(site);
        if (!fit.why_not.empty()) {
            why_not = fit.why_not;
        } else if (!best || fit.score > most) {
            most = fit.score;
            best = std::move(model);
        }
    }
    if (best) return std::move(*best);
    if (site.ranks() == 1) return detail::stub_model();
    throw error(errc::not_supported, fmt::format("{} ranks on {} hosts cannot use {}", site.ranks(),
                                                 site.where.hosts.size(), name))
        .with_cause(why_not)
        .with_hint("choose automatic");
}

SKEIN_INLINE std::unique_ptr<communicator> make_automatic(const comm_site& site) {
    auto options = site.options;
    options.model = "automatic";
    const comm_site of{site.world, options, site.worker, site.where, site.one_network, site.key};
    return choose_comm_model(of).make(of);
}

SKEIN_INLINE comm_fit fits_by_name_alone(const comm_site& site, std::string_view what) {
    if (site.options.model != "automatic") return {};
    return {0, fmt::format("it is for {}, and has to be asked for", what)};
}

} // namespace skein::dist
