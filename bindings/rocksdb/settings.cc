#include "settings.h"

#include <cctype>
#include <cstdlib>
#include <limits>

namespace octavo_rocksdb {

namespace {

// The names of settings in a URI. In the environment they are in capitals, after OCTAVO_.
constexpr const char* kNames[] = {"memory_max", "io_engine",  "numa", "partition",  "policy",
                                  "max",        "read_ahead", "page", "idle_tables"};

constexpr const char kScheme[] = "octavo://";

std::string Variable(const std::string& name) {
  std::string variable = "OCTAVO_";
  for (char letter : name) {
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  }
  return variable;
}

}  // namespace

bool ParseBytes(const std::string& text, uint64_t* bytes) {
  size_t digits = 0;
  uint64_t number = 0;
  for (; digits < text.size() && std::isdigit(static_cast<unsigned char>(text[digits])); digits++) {
    const uint64_t digit = static_cast<uint64_t>(text[digits] - '0');
    if (number > (std::numeric_limits<uint64_t>::max() - digit) / 10) return false;
    number = number * 10 + digit;
  }
  size_t begin = digits;
  while (begin < text.size() && text[begin] == ' ') begin++;
  std::string unit;
  for (const char letter : text.substr(begin)) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  // As in Octavo's other programs: a bare letter stands for a power of 1024.
  uint64_t scale = 1;
  if (unit == "k" || unit == "kib") {
    scale = uint64_t{1} << 10;
  } else if (unit == "m" || unit == "mib") {
    scale = uint64_t{1} << 20;
  } else if (unit == "g" || unit == "gib") {
    scale = uint64_t{1} << 30;
  } else if (unit == "t" || unit == "tib") {
    scale = uint64_t{1} << 40;
  } else if (unit == "kb") {
    scale = 1000;
  } else if (unit == "mb") {
    scale = 1000000;
  } else if (unit == "gb") {
    scale = 1000000000;
  } else if (unit == "tb") {
    scale = 1000000000000;
  } else if (!unit.empty() && unit != "b") {
    return false;
  }
  if (digits == 0 || number > std::numeric_limits<uint64_t>::max() / scale) return false;
  *bytes = number * scale;
  return true;
}

bool Settings::Set(const std::string& name, const std::string& value, std::string* error) {
  std::string* text = nullptr;
  uint64_t* number = nullptr;
  if (name == "memory_max") {
    number = &memory_max_bytes;
  } else if (name == "max") {
    number = &partition_max_bytes;
  } else if (name == "read_ahead") {
    number = &read_ahead_bytes;
  } else if (name == "page") {
    number = &page_bytes;
  } else if (name == "idle_tables") {
    number = &idle_tables_max;
  } else if (name == "io_engine") {
    text = &io_engine;
  } else if (name == "numa") {
    text = &numa;
  } else if (name == "partition") {
    text = &partition;
  } else if (name == "policy") {
    text = &policy;
  } else {
    *error = "there is no setting \"" + name + "\"; the settings are";
    for (const char* known : kNames) *error += std::string(" ") + known;
    return false;
  }
  if (value.empty() || (number != nullptr && !ParseBytes(value, number))) {
    *error = name + " is \"" + value + "\"";
    if (number != nullptr) *error += ": a number is needed, such as 4096, 64KiB or 2GiB";
    return false;
  }
  if (text != nullptr) *text = value;
  return true;
}

bool Settings::Read(const std::string& uri, std::string* error) {
  for (const char* name : kNames) {
    const std::string variable = Variable(name);
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr && !Set(name, value, error)) {
      *error += " (from " + variable + ")";
      return false;
    }
  }
  const std::string rest = uri.substr(uri.find(kScheme) == 0 ? sizeof kScheme - 1 : uri.size());
  if (rest.empty()) return true;
  if (rest[0] != '?') {
    *error = "octavo:// has no path; settings follow a question mark, as in "
             "octavo://?memory_max=1GiB&policy=lru";
    return false;
  }
  for (size_t at = 1; at <= rest.size();) {
    const size_t end = std::min(rest.find('&', at), rest.size());
    const std::string pair = rest.substr(at, end - at);
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string value = pair.substr(std::min(equals + 1, pair.size()));
    if (!Set(pair.substr(0, equals), value, error)) return false;
    at = end + 1;
  }
  return true;
}

bool Settings::SameCache(const Settings& other) const {
  return memory_max_bytes == other.memory_max_bytes && io_engine == other.io_engine &&
         numa == other.numa;
}

bool Settings::SamePartition(const Settings& other) const {
  return policy == other.policy && partition_max_bytes == other.partition_max_bytes &&
         read_ahead_bytes == other.read_ahead_bytes && page_bytes == other.page_bytes &&
         idle_tables_max == other.idle_tables_max;
}

}  // namespace octavo_rocksdb
