-- pandoc's filter for man pages: docs/*.md are written to be read on the web, too.

-- The width of a page's text, in characters, on a terminal of 80 columns.
local WIDTH = 64

-- Each command of a synopsis begins a line.
local in_synopsis = false

local function begins_command(inline)
  return inline and inline.t == "Strong" and pandoc.utils.stringify(inline):match("^octavo")
end

local function split_commands(paragraph)
  for at, inline in ipairs(paragraph.content) do
    if inline.t == "SoftBreak" and begins_command(paragraph.content[at + 1]) then
      paragraph.content[at] = pandoc.LineBreak()
    end
  end
  return paragraph
end

-- Returns the length of the longest line of each column.
local function lengths(rows)
  local columns = {}
  for _, row in ipairs(rows) do
    for at, cell in ipairs(row) do
      columns[at] = math.max(columns[at] or 1, #pandoc.utils.stringify(pandoc.Div(cell)))
    end
  end
  return columns
end

-- Lets a list of fields in a cell be broken at its commas.
local function break_text(text)
  if #text.text > 24 and text.text:match("^[%w,_]+$") then
    return pandoc.RawInline("man", (text.text:gsub(",", ",\\:")))
  end
end

local function break_code(code)
  if code.text:match("^,") then
    return { pandoc.RawInline("man", "\\:"), code }
  end
end

-- Columns are as wide as their text. If the page is too narrow, the widest ones give way.
local function fit(table)
  table = table:walk({ Str = break_text, Code = break_code })
  local simple = pandoc.utils.to_simple_table(table)
  local rows = { simple.headers }
  for _, row in ipairs(simple.rows) do
    rows[#rows + 1] = row
  end
  local columns, sum = lengths(rows), 0
  for _, length in ipairs(columns) do
    sum = sum + length + 3
  end
  -- pandoc multiplies widths with 70. Without a width, a column is not broken.
  local unit = sum <= WIDTH and 0 or 1 / 70
  for _ = WIDTH, sum - 1 do
    local widest = 1
    for at, length in ipairs(columns) do
      if length > columns[widest] then
        widest = at
      end
    end
    columns[widest] = columns[widest] - 1
  end
  simple.widths = pandoc.List.map(columns, function(length) return length * unit end)
  return pandoc.utils.from_simple_table(simple)
end

function Pandoc(document)
  for at, block in ipairs(document.blocks) do
    if block.t == "Header" then
      in_synopsis = pandoc.utils.stringify(block) == "SYNOPSIS"
    elseif block.t == "Para" and in_synopsis then
      document.blocks[at] = split_commands(block)
    end
  end
  return document:walk({ Table = fit })
end
