-- US utility grants of a window of grant dates: numbers, dates, title, claims, owners, codes with their flags.
--
-- Parameters: @start_date, @end_date DATE, both inclusive. In the console: More, Query settings.
-- Claims are most of the price, and no WHERE makes it less: run it once, into a table of your own.
-- Designs, plants, reissues (application_kind other than A), applications (A1) and undated rows stay out;
-- B1 (granted without an earlier publication, some 15%) comes in beside B2.
-- The code arrays are unions over offices and family members: their order means nothing, `first` does.
-- 0 and '' are the table's way to say unknown; both are NULL here.
WITH
  _utility AS (
    SELECT
      publication_number,
      application_number,
      family_id,
      kind_code,
      title_localized,
      claims_localized,
      assignee_harmonized,
      cpc,
      ipc,
      SAFE_CAST(
        CONCAT(
          SUBSTR(CAST(grant_date AS STRING), 1, 4), '-',
          SUBSTR(CAST(grant_date AS STRING), 5, 2), '-',
          SUBSTR(CAST(grant_date AS STRING), 7, 2)
        ) AS DATE
      ) AS granted,
      SAFE_CAST(
        CONCAT(
          SUBSTR(CAST(filing_date AS STRING), 1, 4), '-',
          SUBSTR(CAST(filing_date AS STRING), 5, 2), '-',
          SUBSTR(CAST(filing_date AS STRING), 7, 2)
        ) AS DATE
      ) AS filed
    FROM `patents-public-data.patents.publications`
    WHERE country_code = 'US'
      AND kind_code IN ('B1', 'B2')
      AND application_kind = 'A'
  )
SELECT
  publication_number,
  REGEXP_EXTRACT(publication_number, r'^US-(.+)-B[12]$') AS patent_id,
  NULLIF(application_number, '') AS application_number,
  NULLIF(family_id, '') AS family_id,
  kind_code,
  filed AS filing_date,
  granted AS grant_date,
  (
    SELECT NULLIF(title.text, '')
    FROM UNNEST(title_localized) AS title WITH OFFSET AS position
    ORDER BY IFNULL(title.language, '') = 'en' DESC, position
    LIMIT 1
  ) AS title,
  (
    SELECT NULLIF(claim.text, '')
    FROM UNNEST(claims_localized) AS claim WITH OFFSET AS position
    ORDER BY IFNULL(claim.language, '') = 'en' DESC, position
    LIMIT 1
  ) AS claims,
  ARRAY(
    SELECT assignee.name
    FROM UNNEST(assignee_harmonized) AS assignee WITH OFFSET AS position
    WHERE assignee.name <> ''
    ORDER BY position
  ) AS assignees,
  ARRAY(
    SELECT AS STRUCT symbol.code AS code, symbol.first AS first, symbol.inventive AS inventive
    FROM UNNEST(cpc) AS symbol WITH OFFSET AS position
    ORDER BY position
  ) AS cpc,
  ARRAY(
    SELECT AS STRUCT symbol.code AS code, symbol.first AS first, symbol.inventive AS inventive
    FROM UNNEST(ipc) AS symbol WITH OFFSET AS position
    ORDER BY position
  ) AS ipc
FROM _utility
WHERE granted BETWEEN @start_date AND @end_date
