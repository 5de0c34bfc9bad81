// SPDX-License-Identifier: Apache-2.0
#pragma once
// One column of a run's metrics.csv.

#include <sstream>
#include <string>
#include <vector>

namespace skein::test {

/// The numbers of a text with a header.
inline std::vector<double> csv_column(const std::string& csv, const std::string& name) {
    std::istringstream in(csv);
    std::string line, field;
    std::getline(in, line);
    std::size_t at = 0;
    std::istringstream header(line);
    for (; std::getline(header, field, ',') && field != name; ++at) {}
    std::vector<double> out;
    while (std::getline(in, line)) {
        std::istringstream row(line);
        for (std::size_t i = 0; i <= at; ++i) std::getline(row, field, ',');
        out.push_back(std::stod(field));
    }
    return out;
}

} // namespace skein::test
