#!/bin/sh
# Puts the verdicts of a comparison into one comment of its pull request, by GitHub's own program gh.
set -eu
marker="<!-- flashinfer-perf: $NAME -->"
comments="repos/$GITHUB_REPOSITORY/issues"
{ echo "$marker"; head -c 65000 "$FOLDER/verdicts.md"; } > "$RUNNER_TEMP/comment.md"
known=$(gh api --paginate "$comments/$NUMBER/comments" --jq ".[] | select(.body | startswith(\"$marker\")) | .id" | head -n 1)
if [ -n "$known" ]; then
  gh api --method PATCH "$comments/comments/$known" --field "body=@$RUNNER_TEMP/comment.md"
else
  gh api "$comments/$NUMBER/comments" --field "body=@$RUNNER_TEMP/comment.md"
fi > /dev/null
