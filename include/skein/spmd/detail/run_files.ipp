// SPDX-License-Identifier: Apache-2.0
#pragma once
// The body of spmd/run_files.hpp.

#include <skein/net/address.hpp>
#include <skein/spmd/elastic_keeper.hpp>
#include <skein/spmd/meeting.hpp>

namespace skein::spmd {

SKEIN_INLINE run_files::run_files(const std::string& own, const variable_reader& read) {
    const auto where = read(run_files_variable), folder = read(run_folder_variable);
    if (!where || !folder) return;
    auto at = net::address::parse(*where).value();
    if (at.host == "*") {
        auto door = read(group_variable);
        if (!door) door = read(elastic_variable);
        if (door) at.host = net::address::parse(*door).value().host;
    }
    there_.emplace(at, group_token(read), *folder);
    here_.emplace(*folder, own, *there_);
}

} // namespace skein::spmd
