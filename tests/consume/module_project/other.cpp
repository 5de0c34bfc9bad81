// SPDX-License-Identifier: Apache-2.0
// A second file of the program imports, too.
#include <string>

import skein;

std::size_t size_on_the_wire(const std::string& text);
std::size_t size_on_the_wire(const std::string& text) { return skein::wire::encode(text).size(); }
